// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

const (
	bundledObjects = 500
	bundledRuns    = 10
	bundledLines   = 2000
	bundledBytes   = 1 << 20

	redacted = "(left out)"
)

// keptAnnotations have values that Holdfast itself defines.
var keptAnnotations = []string{enginev1alpha1.AnnotationKeyExported, enginev1alpha1.AnnotationAcceptExpiry, enginev1alpha1.AnnotationAcceptLoss, enginev1alpha1.AnnotationTakeOver, enginev1alpha1.AnnotationGiveUpStore}

var inURL = regexp.MustCompile(`://[^/@\s]+@`)

// redact removes every value that may be secret: annotations, environments, hooks, and passwords in URLs. It
// changes maps and lists in place.
func redact(value any) any {
	switch of := value.(type) {
	case map[string]any:
		for key, inner := range of {
			switch key {
			case "managedFields":
				delete(of, key)
			case "annotations":
				annotations, _ := inner.(map[string]any)
				for name := range annotations {
					if !slices.Contains(keptAnnotations, name) {
						annotations[name] = redacted
					}
				}
			case "env":
				list, _ := inner.([]any)
				for _, variable := range list {
					if fields, ok := variable.(map[string]any); ok && fields["value"] != nil {
						fields["value"] = redacted
					}
				}
			case "hooks", "resourceModifier", "data", "stringData", "binaryData":
				of[key] = redacted
			default:
				of[key] = redact(inner)
			}
		}
	case []any:
		for i := range of {
			of[i] = redact(of[i])
		}
	case string:
		return inURL.ReplaceAllString(of, "://"+redacted+"@")
	}
	return value
}

type bundle struct {
	clients
	system  string
	now     time.Time
	tar     *tar.Writer
	files   int
	leftOut []string // a line for each missing part, with the reason
}

func (t *tool) bundleCommand() *cobra.Command {
	var file, system string
	command := &cobra.Command{
		Use: "bundle", Short: "Write an archive for support: records, events, logs, versions, and what doctor finds",
		Long: `Write an archive for support, a tar.gz that only you may read. It has what you may
see: records, events, logs of runs that did not complete and of Holdfast's pods,
versions, and the output of doctor. Secrets and ConfigMaps are never read. Values
of annotations and environments, and hooks, are left out. The file LEFT-OUT.txt
says what is missing, and why.`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			now := time.Now().UTC()
			return t.bundle(command.Context(), cmp.Or(file, "holdfast-bundle-"+now.Format("20060102-150405")+".tar.gz"), system, now)
		},
	}
	command.Flags().StringVar(&file, "output-file", "", "New file for the archive. Default: holdfast-bundle-TIME.tar.gz.")
	systemFlag(command, &system)
	return command
}

func (t *tool) bundle(ctx context.Context, path, system string, now time.Time) (err error) {
	b := &bundle{system: system, now: now}
	if b.clients, err = t.clients(); err != nil {
		return err
	}
	_, _ = b.findSystem(ctx, &b.system) // else the default
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	zipped := gzip.NewWriter(file)
	b.tar = tar.NewWriter(zipped)
	err = b.collect(ctx, t)
	if err = errors.Join(err, b.tar.Close(), zipped.Close(), file.Sync(), file.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	fmt.Fprintf(t.Out, "%s has %s; LEFT-OUT.txt in it names %s. Look through it before you send it.\n", path, counted(b.files, "file"), counted(len(b.leftOut), "missing part"))
	return nil
}

func (b *bundle) add(name string, data []byte) error {
	b.files++
	if err := b.tar.WriteHeader(&tar.Header{Name: "holdfast-bundle/" + name, Mode: 0o600, Size: int64(len(data)), ModTime: b.now}); err != nil {
		return err
	}
	_, err := b.tar.Write(data)
	return err
}

func (b *bundle) without(what string, err error) {
	reason := err.Error()
	switch {
	case apierrors.IsForbidden(err):
		reason = "you may not read it"
	case apierrors.IsNotFound(err):
		reason = "it is not there"
	}
	b.leftOut = append(b.leftOut, what+": "+inURL.ReplaceAllString(reason, "://"+redacted+"@"))
}

func (b *bundle) collect(ctx context.Context, t *tool) error {
	if err := b.addDoctor(ctx, t); err != nil {
		return err
	}
	for _, resource := range []string{backups, restores, schedules, "backupqueues", volumeBackups} {
		raw, err := b.addOfAll(ctx, resource)
		if err != nil {
			return err
		}
		if resource == backups || resource == restores {
			if err := b.addRuns(ctx, resource, raw); err != nil {
				return err
			}
		}
	}
	if _, err := b.addObjects(ctx, "nodeagents", v1alpha1Path("", "nodeagents"), true); err != nil {
		return err
	}
	for _, resource := range []string{storageLocations, "volumerepositories", "backupruns", "restoreruns", "volumeuploads", "volumerestores", "scheduleentries", "backupchanges", "expirationchanges", "volumedeletions"} {
		if _, err := b.addObjects(ctx, "records/"+resource, fmt.Sprintf("/apis/%s/namespaces/%s/%s", enginev1alpha1.SchemeGroupVersion, b.system, resource), true); err != nil {
			return err
		}
	}
	for _, namespace := range []string{b.system, enginev1alpha1.AgentsNamespace(b.system), enginev1alpha1.MaintenanceNamespace(b.system)} {
		if err := b.addNamespace(ctx, namespace); err != nil {
			return err
		}
	}
	b.leftOut = append(b.leftOut, "Secrets and ConfigMaps: they are never read",
		"values of annotations and environments, hooks, resourceModifier: they may hold passwords",
		fmt.Sprintf("of each kind all but %d objects, of each log all but the last %d lines or %d bytes", bundledObjects, bundledLines, bundledBytes))
	return b.add("LEFT-OUT.txt", []byte(strings.Join(b.leftOut, "\n")+"\n"))
}

func (b *bundle) addDoctor(ctx context.Context, t *tool) error {
	var text, data bytes.Buffer
	inner := *t
	inner.ErrOut = io.Discard
	d := doctor{t: &inner, now: time.Now, all: true, system: b.system}
	found, err := d.run(ctx)
	if err != nil {
		return err
	}
	inner.Out = &text
	if err := inner.printReport(found, ""); err != nil {
		return err
	}
	inner.Out = &data
	if err := inner.printReport(found, "json"); err != nil {
		return err
	}
	return errors.Join(b.add("doctor.txt", inURL.ReplaceAll(text.Bytes(), []byte("://"+redacted+"@"))), b.add("doctor.json", inURL.ReplaceAll(data.Bytes(), []byte("://"+redacted+"@"))))
}

func v1alpha1Path(namespace, resource string) string {
	path := "/apis/" + v1alpha1.SchemeGroupVersion.String() + "/"
	if namespace != metav1.NamespaceAll {
		path += "namespaces/" + namespace + "/"
	}
	return path + resource
}

// addOfAll adds the objects of all namespaces, or of the caller's one.
func (b *bundle) addOfAll(ctx context.Context, resource string) ([]byte, error) {
	raw, err := b.addObjects(ctx, resource, v1alpha1Path("", resource), false)
	if err == nil && raw == nil {
		raw, err = b.addObjects(ctx, resource+" of the namespace "+b.namespace, v1alpha1Path(b.namespace, resource), true)
	}
	return raw, err
}

// addObjects adds a list, redacted, and returns it as it was read; nil if it can't be read, which last notes.
func (b *bundle) addObjects(ctx context.Context, name, path string, last bool) ([]byte, error) {
	raw, err := answer(ctx, b.kube.Discovery().RESTClient().Get().AbsPath(path).Param("limit", strconv.Itoa(bundledObjects)))
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		if last || !apierrors.IsForbidden(err) {
			b.without(name, err)
		}
		return nil, nil
	}
	var list map[string]any
	if err := json.Unmarshal(raw, &list); err != nil {
		b.without(name, err)
		return nil, nil
	}
	if meta, ok := list["metadata"].(map[string]any); ok && meta["continue"] != nil && meta["continue"] != "" {
		b.leftOut = append(b.leftOut, fmt.Sprintf("%s: there are more than %d", name, bundledObjects))
	}
	text, err := yaml.Marshal(redact(list))
	if err != nil {
		return nil, err
	}
	return raw, b.add("objects/"+strings.ReplaceAll(name, " ", "-")+".yaml", text)
}

type oneRun struct {
	metav1.ObjectMeta `json:"metadata"`
	Status            struct{ Phase string }
}

// addRuns adds logs and results of the newest backups or restores that have not completed.
func (b *bundle) addRuns(ctx context.Context, resource string, raw []byte) error {
	var list struct {
		Items []oneRun
	}
	if raw == nil {
		return nil
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return err
	}
	runs := slices.DeleteFunc(list.Items, func(of oneRun) bool {
		return of.Status.Phase == string(v1alpha1.BackupPhaseCompleted)
	})
	slices.SortFunc(runs, func(a, b oneRun) int {
		return b.CreationTimestamp.Compare(a.CreationTimestamp.Time)
	})
	if len(runs) > bundledRuns {
		b.leftOut = append(b.leftOut, fmt.Sprintf("logs of %d older %s that did not complete", len(runs)-bundledRuns, resource))
		runs = runs[:bundledRuns]
	}
	for _, of := range runs {
		for _, part := range []string{"log", "results"} {
			name := fmt.Sprintf("runs/%s/%s/%s.%s", resource, of.Namespace, of.Name, part)
			if err := b.addStream(ctx, name, v1alpha1Path(of.Namespace, resource)+"/"+of.Name+"/"+part, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *bundle) addStream(ctx context.Context, name, path string, parameters map[string]string) error {
	request := b.kube.Discovery().RESTClient().Get().AbsPath(path)
	for key, value := range parameters {
		request = request.Param(key, value)
	}
	body, err := request.Stream(ctx)
	if err != nil {
		b.without(name, err)
		return ctx.Err()
	}
	defer body.Close()
	text, err := io.ReadAll(io.LimitReader(body, bundledBytes))
	if err != nil {
		b.without(name, err)
	}
	return errors.Join(ctx.Err(), b.add(name, inURL.ReplaceAll(text, []byte("://"+redacted+"@"))))
}

// addNamespace adds the events, pods, Leases and logs of one of Holdfast's namespaces.
func (b *bundle) addNamespace(ctx context.Context, namespace string) error {
	core := "/api/v1/namespaces/" + namespace
	if _, err := b.addObjects(ctx, "events of "+namespace, core+"/events", true); err != nil {
		return err
	}
	if _, err := b.addObjects(ctx, "leases of "+namespace, "/apis/coordination.k8s.io/v1/namespaces/"+namespace+"/leases", true); err != nil {
		return err
	}
	raw, err := b.addObjects(ctx, "pods of "+namespace, core+"/pods", true)
	if err != nil || raw == nil {
		return err
	}
	var pods corev1.PodList
	if err := json.Unmarshal(raw, &pods); err != nil {
		return err
	}
	for _, pod := range pods.Items {
		for _, container := range pod.Spec.Containers {
			name := fmt.Sprintf("logs/%s/%s.%s", namespace, pod.Name, container.Name)
			parameters := map[string]string{"container": container.Name, "tailLines": strconv.Itoa(bundledLines), "limitBytes": strconv.Itoa(bundledBytes), "timestamps": "true"}
			if err := b.addStream(ctx, name+".log", core+"/pods/"+pod.Name+"/log", parameters); err != nil {
				return err
			}
			if slices.ContainsFunc(pod.Status.ContainerStatuses, func(of corev1.ContainerStatus) bool { return of.RestartCount > 0 }) {
				parameters["previous"] = "true"
				if err := b.addStream(ctx, name+".previous.log", core+"/pods/"+pod.Name+"/log", parameters); err != nil {
					return err
				}
			}
			for _, port := range container.Ports {
				if port.Name == "https" {
					// kube-apiserver sends no credentials along, so the component must ask for none.
					if err := b.addStream(ctx, name+".metrics", fmt.Sprintf("%s/pods/https:%s:%d/proxy/metrics", core, pod.Name, port.ContainerPort), nil); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}
