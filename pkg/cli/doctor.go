// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	engineclientset "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned"
	holdfastclientset "github.com/holdfast-io/holdfast/pkg/generated/holdfast/clientset/versioned"
)

// defaultSystem is the namespace of Holdfast's records, unless the APIService names another.
const defaultSystem = "holdfast"

const width = 80 // columns of reports

type severity string

const (
	// severe means that backups or restores fail, or that data may be lost.
	severe severity = "error"
	// doubtful means that they will, or that a part does not work.
	doubtful severity = "warning"
	// notable does not change the exit code.
	notable severity = "note"
)

type finding struct {
	Severity severity `json:"severity"`
	About    string   `json:"about"` // RESOURCE/NAME
	Problem  string   `json:"problem"`
	Remedy   string   `json:"remedy"`
	Command  string   `json:"command,omitempty"` // a command line of the remedy
}

type reportPart struct {
	Name       string    `json:"name"`
	Checked    string    `json:"checked,omitempty"`
	NotChecked []string  `json:"notChecked,omitempty"`
	Findings   []finding `json:"findings,omitempty"`
}

func (s *reportPart) add(severity severity, about, problem, remedy, command string) {
	s.Findings = append(s.Findings, finding{severity, about, problem, remedy, command})
}

type report struct {
	Healthy  bool          `json:"healthy"`
	Errors   int           `json:"errors"`
	Warnings int           `json:"warnings"`
	Notes    int           `json:"notes"`
	Sections []*reportPart `json:"sections"`
}

func (r *report) count() {
	for _, s := range r.Sections {
		for _, f := range s.Findings {
			switch f.Severity {
			case severe:
				r.Errors++
			case doubtful:
				r.Warnings++
			case notable:
				r.Notes++
			}
		}
	}
	r.Healthy = r.Errors+r.Warnings == 0
}

// clients are for all groups that the plugin reads.
type clients struct {
	config    *rest.Config
	namespace string
	holdfast  holdfastclientset.Interface
	engine    engineclientset.Interface
	kube      kubernetes.Interface
}

func (t *tool) config() (*rest.Config, error) {
	config, err := t.flags.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	config.UserAgent = "kubectl-holdfast/" + t.version
	config.WarningHandler = rest.NewWarningWriter(t.ErrOut, rest.WarningWriterOptions{Deduplicate: true})
	return config, nil
}

func (t *tool) clients() (c clients, err error) {
	if c.config, err = t.config(); err != nil {
		return c, err
	}
	c.config.QPS, c.config.Burst = 50, 300 // as kubectl
	if c.namespace, _, err = t.flags.ToRawKubeConfigLoader().Namespace(); err != nil {
		return c, err
	}
	if c.holdfast, err = holdfastclientset.NewForConfig(c.config); err != nil {
		return c, err
	}
	if c.engine, err = engineclientset.NewForConfig(c.config); err != nil {
		return c, err
	}
	c.kube, err = kubernetes.NewForConfig(c.config)
	return c, err
}

func systemFlag(command *cobra.Command, system *string) {
	command.Flags().StringVar(system, "system-namespace", "", "Namespace of Holdfast. Default: as the APIService says, else "+defaultSystem+".")
}

func (t *tool) doctorCommand() *cobra.Command {
	d := doctor{t: t, now: time.Now}
	var format string
	command := &cobra.Command{
		Use: "doctor", Short: "Check the installation, and say what is wrong and what to do",
		Long: `Check the API, your rights, storage locations, agents, repositories and their
keys, schedules and the queue. Each finding has a remedy. Parts that you may not
see are named, and are no findings. The exit code is 1 if there is an error or a
warning.`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			switch format {
			case "", "json", "yaml":
			default:
				return usage("--output %q: want json or yaml", format)
			}
			found, err := d.run(command.Context())
			if err != nil {
				return err
			}
			if err := t.printReport(found, format); err != nil {
				return err
			}
			if !found.Healthy {
				return fmt.Errorf("the check found %s and %s", counted(found.Errors, "error"), counted(found.Warnings, "warning"))
			}
			return nil
		},
	}
	command.Flags().StringVarP(&format, "output", "o", "", "Output format: json or yaml. Default: text.")
	command.Flags().BoolVarP(&d.all, "all-namespaces", "A", false, "Schedules and queue of all namespaces.")
	systemFlag(command, &d.system)
	return command
}

type doctor struct {
	t      *tool
	now    func() time.Time
	all    bool
	system string

	clients
	serves   bool                // the API answers
	versions map[string][]string // versions and images, by component
}

func (d *doctor) run(ctx context.Context) (*report, error) {
	var err error
	if d.clients, err = d.t.clients(); err != nil {
		return nil, err
	}
	kubernetes, err := d.kube.Discovery().ServerVersion()
	if err != nil {
		return nil, fmt.Errorf("the Kubernetes API server does not answer: %w", err)
	}
	d.versions = map[string][]string{}
	result := &report{}
	for _, check := range []struct {
		name string
		of   func(context.Context, *reportPart)
	}{
		{"API", d.checkAPI},
		{"Rights", d.checkRights},
		{"Processes", d.checkProcesses},
		{"Locations", d.checkLocations},
		{"Repositories", d.checkRepositories},
		{"Agents", d.checkAgents},
		{"Schedules", d.checkSchedules},
		{"Queue", d.checkQueue},
		{"Nodes", d.checkNodeRestriction},
		{"Versions", func(_ context.Context, s *reportPart) { d.checkVersions(s, kubernetes) }},
	} {
		s := &reportPart{Name: check.name}
		check.of(ctx, s)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		result.Sections = append(result.Sections, s)
	}
	result.count()
	return result, nil
}

// unseen notes why a request failed, and reports whether it did. Missing rights are no finding.
func (s *reportPart) unseen(err error, what string) bool {
	switch {
	case err == nil:
		return false
	case apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err):
		s.NotChecked = append(s.NotChecked, "you may not "+what)
	case apierrors.IsNotFound(err):
		s.NotChecked = append(s.NotChecked, "this cluster does not serve it: can't "+what)
	case apierrors.IsServiceUnavailable(err):
		s.NotChecked = append(s.NotChecked, "the API of Holdfast does not answer: can't "+what)
	default:
		s.add(severe, "request", fmt.Sprintf("can't %s: %v", what, err), "Try again. If it stays, look into the log of kube-apiserver.", "")
	}
	return true
}

func (d *doctor) scope() (namespace, text string) {
	if d.all {
		return metav1.NamespaceAll, "all namespaces"
	}
	return d.namespace, "the namespace " + d.namespace
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

const (
	red    = "31"
	yellow = "33"
	green  = "32"
)

// colour marks a text on a terminal, unless NO_COLOR is set.
func (t *tool) colour(code, text string) string {
	if os.Getenv("NO_COLOR") != "" || !isTerminal(t.Out) {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// wrapped breaks a text at spaces, so that lines with the indentation have at most width columns.
func wrapped(to io.Writer, indent, text string) {
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len(indent)+len(line)+1+len(word) > width {
			fmt.Fprintln(to, indent+line)
			line = ""
		}
		line = strings.TrimPrefix(line+" "+word, " ")
	}
	if line != "" {
		fmt.Fprintln(to, indent+line)
	}
}

func (t *tool) printReport(of *report, format string) error {
	if format != "" {
		raw, err := json.MarshalIndent(of, "", "    ")
		if err == nil && format == "yaml" {
			raw, err = yaml.JSONToYAML(raw)
		}
		if err == nil {
			_, err = fmt.Fprintln(t.Out, strings.TrimRight(string(raw), "\n"))
		}
		return err
	}
	colours := map[severity]string{severe: red, doubtful: yellow}
	for _, s := range of.Sections {
		state := t.colour(green, "ok")
		bad := 0
		for _, f := range s.Findings {
			if f.Severity != notable {
				bad++
			}
		}
		switch {
		case bad > 0:
			state = t.colour(red, "wrong")
		case s.Checked == "" && len(s.NotChecked) > 0:
			state = "not checked"
		}
		fmt.Fprintf(t.Out, "%s: %s\n", s.Name, state)
		wrapped(t.Out, "  ", s.Checked)
		for _, text := range s.NotChecked {
			wrapped(t.Out, "  ", "not seen: "+text)
		}
		for _, f := range s.Findings {
			word := string(f.Severity)
			if code := colours[f.Severity]; code != "" {
				word = t.colour(code, word)
			}
			fmt.Fprintf(t.Out, "  %s: %s\n", word, f.About)
			wrapped(t.Out, "    ", f.Problem)
			wrapped(t.Out, "    ", "Remedy: "+f.Remedy)
			if f.Command != "" {
				fmt.Fprintln(t.Out, "      "+f.Command)
			}
		}
	}
	fmt.Fprintln(t.Out)
	if of.Healthy {
		fmt.Fprintf(t.Out, "Nothing is wrong, with %s.\n", counted(of.Notes, "note"))
		return nil
	}
	fmt.Fprintf(t.Out, "%s, %s, %s.\n", counted(of.Errors, "error"), counted(of.Warnings, "warning"), counted(of.Notes, "note"))
	return nil
}

func (c *clients) raw(ctx context.Context, path string) ([]byte, error) {
	client := c.kube.Discovery().RESTClient()
	if client == nil {
		return nil, errors.New("there is no client for " + path)
	}
	return answer(ctx, client.Get().AbsPath(path))
}
