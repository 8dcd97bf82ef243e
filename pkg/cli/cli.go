// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cli is kubectl holdfast, a thin client of Holdfast's API.
//
//   - It only uses the Kubernetes API server, with its user's rights. The API decides everything.
//   - It asks before it deletes or overwrites, unless --yes is set. Without a terminal it refuses.
package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	holdfastclientset "github.com/holdfast-io/holdfast/pkg/generated/holdfast/clientset/versioned"
)

const (
	// ExitOK: the request succeeded.
	ExitOK = 0
	// ExitFailed: the request was refused, or the backup or restore failed or was cancelled.
	ExitFailed = 1
	// ExitUsage: the command line is wrong, and nothing was sent.
	ExitUsage = 2
	// ExitPartial: the backup or restore ended PartiallyFailed.
	ExitPartial = 3
	// ExitTimeout: --timeout has passed, and the work continues.
	ExitTimeout = 4
)

type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }

func (e *exitError) Unwrap() error { return e.err }

func usage(text string, args ...any) error {
	return &exitError{ExitUsage, fmt.Errorf(text, args...)}
}

// Run executes a command line and returns the exit code.
func Run(ctx context.Context, version string, args []string, streams genericiooptions.IOStreams) int {
	command := New(version, streams)
	command.SetArgs(args)
	err := command.ExecuteContext(ctx)
	if err == nil {
		return ExitOK
	}
	fmt.Fprintln(streams.ErrOut, "error:", explained(err))
	if e, ok := errors.AsType[*exitError](err); ok {
		return e.code
	}
	return ExitFailed
}

func explained(err error) string {
	switch {
	case apierrors.IsForbidden(err):
		return err.Error() + "\nAsk the administrator for the right, or see docs/security.md for the roles."
	case apierrors.IsServiceUnavailable(err) && strings.Contains(err.Error(), "the server is currently unable to handle the request"): // kube-apiserver's own answer
		return err.Error() + "\nCheck the APIService: kubectl get apiservice " + v1alpha1.SchemeGroupVersion.Version + "." + v1alpha1.GroupName
	case apierrors.IsNotFound(err) && strings.Contains(err.Error(), "the server could not find the requested resource"):
		return "this cluster does not serve " + v1alpha1.GroupName + ": install Holdfast, or choose another cluster with --context"
	}
	return err.Error()
}

// New returns the command kubectl holdfast.
func New(version string, streams genericiooptions.IOStreams) *cobra.Command {
	t := &tool{IOStreams: streams, flags: genericclioptions.NewConfigFlags(true), version: version}
	command := &cobra.Command{
		Use:           "kubectl-holdfast",
		Short:         "Back up and restore with Holdfast",
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl holdfast"},
		Args:          knownCommand,
		RunE:          help,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	command.SetIn(streams.In)
	command.SetOut(streams.Out)
	command.SetErr(streams.ErrOut)
	command.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok && invalid.GetFlag().Value.Type() == "duration" {
			err = fmt.Errorf("%w: want hours, minutes or seconds, such as 720h", err)
		}
		return &exitError{ExitUsage, err}
	})
	t.flags.AddFlags(command.PersistentFlags())
	command.AddCommand(
		t.backupCommand(), t.restoreCommand(), t.scheduleCommand(), t.queueCommand(),
		t.findCommand(), t.historyCommand(), t.protectionCommand(), t.volumesCommand(), t.filesCommand(),
		t.topCommand(), t.statusCommand(), t.doctorCommand(), t.locationCommand(), t.keysCommand(),
		t.migrateCommand(), t.bundleCommand(), t.versionCommand(),
	)
	_ = command.RegisterFlagCompletionFunc("namespace", cobra.NoFileCompletions)
	return command
}

type tool struct {
	genericiooptions.IOStreams
	flags   *genericclioptions.ConfigFlags
	version string
}

func (t *tool) client() (holdfastclientset.Interface, string, error) {
	config, err := t.config()
	if err != nil {
		return nil, "", err
	}
	config.QPS = -1 // the server's priority and fairness limits requests
	client, err := holdfastclientset.NewForConfig(config)
	if err != nil {
		return nil, "", err
	}
	namespace, _, err := t.flags.ToRawKubeConfigLoader().Namespace()
	return client, namespace, err
}

func isTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// fit cuts lines that a terminal would wrap. Other streams get the whole text.
func fit(stream any, text string) string {
	file, ok := stream.(*os.File)
	if !ok {
		return text
	}
	width, _, err := term.GetSize(int(file.Fd()))
	if err != nil || width <= 0 {
		return text
	}
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if runes := []rune(line); len(runes) > width {
			lines[i] = string(runes[:width])
		}
	}
	return strings.Join(lines, "\n")
}

var errStopped = errors.New("stopped: nothing was changed")

// interruptible is an input whose reads end with ctx, such as by Ctrl-C.
type interruptible struct {
	io.Reader
	ctx context.Context
}

func (r interruptible) Read(p []byte) (int, error) {
	type result struct {
		content []byte
		err     error
	}
	done := make(chan result, 1)
	go func() { // it may outlive the command
		content := make([]byte, len(p))
		n, err := r.Reader.Read(content)
		done <- result{content[:n], err}
	}()
	select {
	case read := <-done:
		return copy(p, read.content), read.err
	case <-r.ctx.Done():
		return 0, errStopped
	}
}

// answered asks a question on the terminal. Without one it refuses.
func (t *tool) answered(ctx context.Context, question, prompt string) (string, error) {
	if !isTerminal(t.In) {
		return "", usage("nothing was changed, since the input is no terminal, so nobody can answer. With --yes nothing is asked: %s", question)
	}
	fmt.Fprint(t.ErrOut, question+prompt)
	line, err := bufio.NewReader(interruptible{t.In, ctx}).ReadString('\n')
	if err != nil {
		fmt.Fprintln(t.ErrOut)
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return strings.TrimSpace(line), err
}

func (t *tool) confirm(ctx context.Context, yes bool, question string) error {
	if yes {
		return nil
	}
	answer, err := t.answered(ctx, question, " [y/N] ")
	if err != nil {
		return err
	}
	if answer = strings.ToLower(answer); answer != "y" && answer != "yes" {
		return errStopped
	}
	return nil
}

func (t *tool) confirmName(ctx context.Context, yes bool, question, name string) error {
	if yes {
		return nil
	}
	answer, err := t.answered(ctx, question, "\nType its name to go on: ")
	if err != nil {
		return err
	}
	if answer != name {
		return errors.New("stopped: the name differs, and nothing was changed")
	}
	return nil
}

// ask posts a body to a subresource, and prints the answer's message.
func (t *tool) ask(ctx context.Context, resource, name, subresource string, body runtime.Object) error {
	client, namespace, err := t.client()
	if err != nil {
		return err
	}
	raw, err := answer(ctx, client.HoldfastV1alpha1().RESTClient().Post().Namespace(namespace).Resource(resource).Name(name).SubResource(subresource).Body(body))
	if err != nil {
		return err
	}
	status := metav1.Status{}
	if err := json.Unmarshal(raw, &status); err == nil && status.Message != "" {
		fmt.Fprintln(t.Out, status.Message)
		return nil
	}
	fmt.Fprintf(t.Out, "%s/%s: %s requested\n", resource, name, subresource)
	return nil
}

func typed(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: kind}
}

func answer(ctx context.Context, request *rest.Request) ([]byte, error) {
	result := request.Do(ctx)
	if err := result.Error(); err != nil {
		return nil, err
	}
	return result.Raw()
}

// stream copies a subresource to the output, without holding it in memory.
func (t *tool) stream(ctx context.Context, resource, name, subresource string, parameters map[string]string, to io.Writer) error {
	client, namespace, err := t.client()
	if err != nil {
		return err
	}
	request := client.HoldfastV1alpha1().RESTClient().Get().Namespace(namespace).Resource(resource).Name(name).SubResource(subresource)
	for key, value := range parameters {
		request = request.Param(key, value)
	}
	body, err := request.Stream(ctx)
	if err != nil {
		return err
	}
	defer body.Close()
	if _, err := io.Copy(to, body); err != nil {
		return fmt.Errorf("the %s of %s broke off, and is not complete: %w", subresource, name, err)
	}
	return nil
}

type output struct {
	format        string
	allNamespaces bool
	selector      string
	fields        string
}

func (o *output) addTo(command *cobra.Command, namespaced bool) {
	command.Flags().StringVarP(&o.format, "output", "o", "", "Output format: wide, name, json or yaml. Default: a table.")
	command.Flags().StringVarP(&o.selector, "selector", "l", "", "Only objects with these labels.")
	command.Flags().StringVar(&o.fields, "field-selector", "", "Only objects with these fields.")
	if namespaced {
		command.Flags().BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "All namespaces.")
	}
}

const tableAccept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"

func (t *tool) get(ctx context.Context, resource string, names []string, o output) error {
	client, namespace, err := t.client()
	if err != nil {
		return err
	}
	return t.getFrom(ctx, client.HoldfastV1alpha1().RESTClient(), namespace, resource, names, o)
}

func (t *tool) getFrom(ctx context.Context, client rest.Interface, namespace, resource string, names []string, o output) error {
	if o.allNamespaces {
		if len(names) > 0 {
			return usage("a name and --all-namespaces exclude each other")
		}
		namespace = metav1.NamespaceAll
	}
	switch o.format {
	case "", "wide", "json", "yaml", "name":
	default:
		return usage("output %q is unknown: use wide, name, json or yaml", o.format)
	}
	read := func(name string) error {
		request := client.Get().Namespace(namespace).Resource(resource)
		if name != "" {
			request = request.Name(name)
		} else {
			request = request.VersionedParams(&metav1.ListOptions{LabelSelector: o.selector, FieldSelector: o.fields}, metav1.ParameterCodec)
		}
		if o.format == "" || o.format == "wide" {
			table := &metav1.Table{}
			raw, err := answer(ctx, request.SetHeader("Accept", tableAccept))
			if err != nil {
				return err
			}
			if err := json.Unmarshal(raw, table); err != nil {
				return fmt.Errorf("the server's table can't be read: %w", err)
			}
			return t.printTable(table, o)
		}
		raw, err := answer(ctx, request)
		if err != nil {
			return err
		}
		return t.printRaw(raw, resource, o.format)
	}
	if len(names) == 0 {
		return read("")
	}
	for _, name := range names {
		if err := read(name); err != nil {
			return err
		}
	}
	return nil
}

func (t *tool) printTable(table *metav1.Table, o output) error {
	if len(table.Rows) == 0 {
		fmt.Fprintln(t.ErrOut, "No resources found.")
		return nil
	}
	if o.allNamespaces {
		for i := range table.Rows {
			table.Rows[i].Cells = append([]any{namespaceOf(table.Rows[i].Object.Raw)}, table.Rows[i].Cells...)
		}
		table.ColumnDefinitions = append([]metav1.TableColumnDefinition{{Name: "Namespace", Type: "string"}}, table.ColumnDefinitions...)
	}
	writer := printers.GetNewTabWriter(t.Out)
	if err := printers.NewTablePrinter(printers.PrintOptions{Wide: o.format == "wide"}).PrintObj(table, writer); err != nil {
		return err
	}
	return writer.Flush()
}

func namespaceOf(raw []byte) string {
	object := metav1.PartialObjectMetadata{}
	_ = json.Unmarshal(raw, &object) // a row without metadata has no namespace
	return object.Namespace
}

// printRaw prints an answer without converting numbers and dates.
func (t *tool) printRaw(raw []byte, resource, format string) error {
	switch format {
	case "yaml":
		text, err := yaml.JSONToYAML(raw)
		if err != nil {
			return err
		}
		_, err = t.Out.Write(text)
		return err
	case "name":
		list := struct {
			APIVersion string                         `json:"apiVersion"`
			Items      []metav1.PartialObjectMetadata `json:"items"`
			Metadata   metav1.ObjectMeta              `json:"metadata"`
		}{}
		if err := json.Unmarshal(raw, &list); err != nil {
			return err
		}
		group, _, _ := strings.Cut(list.APIVersion, "/")
		kind := schema.GroupResource{Group: group, Resource: strings.TrimSuffix(resource, "s")}
		if list.Metadata.Name != "" {
			fmt.Fprintf(t.Out, "%s/%s\n", kind, list.Metadata.Name)
		}
		for _, item := range list.Items {
			fmt.Fprintf(t.Out, "%s/%s\n", kind, item.Name)
		}
		return nil
	}
	var object any
	if err := json.Unmarshal(raw, &object); err != nil {
		return err
	}
	text, err := json.MarshalIndent(object, "", "    ")
	if err != nil {
		return err
	}
	fmt.Fprintln(t.Out, string(text))
	return nil
}

func (t *tool) printObject(object runtime.Object, resource, name, format, did string) error {
	if format == "" {
		fmt.Fprintf(t.Out, "%s.%s/%s %s\n", strings.TrimSuffix(resource, "s"), v1alpha1.GroupName, name, did)
		return nil
	}
	raw, err := json.Marshal(object)
	if err != nil {
		return err
	}
	return t.printRaw(raw, resource, format)
}

func (t *tool) getCommand(resource, short string, namespaced bool) *cobra.Command {
	var o output
	command := &cobra.Command{
		Use: "get [NAME...]", Aliases: []string{"list"}, Short: short,
		ValidArgsFunction: t.completeNames(resource),
		RunE:              func(command *cobra.Command, args []string) error { return t.get(command.Context(), resource, args, o) },
	}
	o.addTo(command, namespaced)
	return command
}

func (t *tool) completeNames(resource string) func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return completeFrom(resource, func(context.Context) (rest.Interface, string, error) {
		client, namespace, err := t.client()
		if err != nil {
			return nil, "", err
		}
		return client.HoldfastV1alpha1().RESTClient(), namespace, nil
	})
}

func completeFrom(resource string, of func(context.Context) (rest.Interface, string, error)) func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return func(command *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(command.Context(), 5*time.Second)
		defer cancel()
		client, namespace, err := of(ctx)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		raw, err := answer(ctx, client.Get().Namespace(namespace).Resource(resource).
			SetHeader("Accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"))
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		list := metav1.PartialObjectMetadataList{}
		if err := json.Unmarshal(raw, &list); err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		var names []string
		for _, item := range list.Items {
			if strings.HasPrefix(item.Name, prefix) {
				names = append(names, item.Name)
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

func oneName(command *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usage("got %d names, want one: %s", len(args), command.UseLine())
	}
	return nil
}

func (t *tool) named(resource, use, short string, run func(ctx context.Context, name string) error) *cobra.Command {
	return &cobra.Command{
		Use: use + " NAME", Short: short, Args: oneName, ValidArgsFunction: t.completeNames(resource),
		RunE: func(command *cobra.Command, args []string) error { return run(command.Context(), args[0]) },
	}
}
