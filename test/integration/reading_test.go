// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/registry/backup"
	"github.com/holdfast-io/holdfast/pkg/registry/nodeagent"
	"github.com/holdfast-io/holdfast/pkg/registry/protection"
	"github.com/holdfast-io/holdfast/pkg/registry/volumebackup"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// series makes five completed backups in a namespace of their own, with labels,
// and returns the namespace.
func series(t *testing.T) string {
	t.Helper()
	namespace := lab.Namespace(t, "series")
	backups := lab.Holdfast.HoldfastV1alpha1().Backups(namespace)
	for i := range 5 {
		backup := &v1alpha1.Backup{ObjectMeta: metav1.ObjectMeta{
			Name:   fmt.Sprint("b", i),
			Labels: map[string]string{"parity": []string{"even", "odd"}[i%2]},
		}}
		if _, err := backups.Create(t.Context(), backup, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	lab.Kubectl(t, "wait", "-n", namespace, "--for=condition=Complete", "--timeout=120s", "backups", "--all")
	for i := range 5 {
		lab.AwaitRunGone(t, fmt.Sprint(namespace, ".b", i))
	}
	return namespace
}

// TestReadingBackups: what kubectl users do to find backups.
func TestReadingBackups(t *testing.T) {
	t.Parallel()
	namespace := series(t)
	list := func(args ...string) []string {
		t.Helper()
		lines := strings.Fields(lab.Kubectl(t, append([]string{"get", "backups", "-n", namespace, "-o", "name"}, args...)...))
		slices.Sort(lines)
		return lines
	}
	named := func(names ...string) []string {
		for i := range names {
			names[i] = "backup.holdfast.io/" + names[i]
		}
		return names
	}
	for _, test := range []struct {
		args []string
		want []string
	}{
		{nil, named("b0", "b1", "b2", "b3", "b4")},
		{[]string{"--chunk-size=2"}, named("b0", "b1", "b2", "b3", "b4")},
		{[]string{"-l", "parity=odd"}, named("b1", "b3")},
		{[]string{"-l", "parity notin (odd)"}, named("b0", "b2", "b4")},
		{[]string{"--field-selector", "metadata.name=b2"}, named("b2")},
		{[]string{"--field-selector", "status.phase=Completed,metadata.name!=b0", "-l", "parity=even"}, named("b2", "b4")},
		{[]string{"--field-selector", "status.phase=Failed"}, nil},
		{[]string{"--field-selector", "spec.storageLocation=default,status.requester=lab-admin"}, named("b0", "b1", "b2", "b3", "b4")},
	} {
		if diff := cmp.Diff(test.want, list(test.args...), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("kubectl get backups %s (-want +got):\n%s", strings.Join(test.args, " "), diff)
		}
	}
	wide := lab.Kubectl(t, "get", "backups", "-n", namespace, "-o", "wide")
	if header := strings.Fields(strings.SplitN(wide, "\n", 2)[0]); !slices.Contains(header, "REQUESTER") || strings.Count(wide, "lab-admin") != 5 {
		t.Errorf("kubectl get -o wide prints\n%s", wide)
	}
	if narrow := lab.Kubectl(t, "get", "backups", "-n", namespace); strings.Contains(narrow, "REQUESTER") {
		t.Errorf("kubectl get prints\n%s", narrow)
	}
	yaml := lab.Kubectl(t, "get", "backup", "b1", "-n", namespace, "-o", "yaml")
	for _, text := range []string{"apiVersion: holdfast.io/v1alpha1", "kind: Backup", "parity: odd", "phase: Completed", "- " + namespace} {
		if !strings.Contains(yaml, text) {
			t.Errorf("%q is not in\n%s", text, yaml)
		}
	}
	if text := lab.Kubectl(t, "describe", "backup", "b1", "-n", namespace); !strings.Contains(text, "The backup has ended") {
		t.Errorf("kubectl describe shows no event of the end:\n%s", text)
	}
}

// TestPages: pages of one list are of one moment, and say how much is left.
func TestPages(t *testing.T) {
	t.Parallel()
	namespace := series(t)
	backups := lab.Holdfast.HoldfastV1alpha1().Backups(namespace)
	var names []string
	var version string
	for token := ""; ; {
		page, err := backups.List(t.Context(), metav1.ListOptions{Limit: 2, Continue: token})
		if err != nil {
			t.Fatal(err)
		}
		if len(page.Items) > 2 {
			t.Errorf("a page of 2 has %d", len(page.Items))
		}
		for _, backup := range page.Items {
			names = append(names, backup.Name)
		}
		if version == "" {
			version = page.ResourceVersion
			// What comes later belongs to none of the pages.
			lab.Create(t, namespace, "b9", v1alpha1.BackupSpec{})
		}
		if page.ResourceVersion != version {
			t.Errorf("a page has resourceVersion %s, the first one had %s", page.ResourceVersion, version)
		}
		token = page.Continue
		if token == "" {
			break
		}
		if left := page.RemainingItemCount; left == nil || *left != int64(5-len(names)) {
			t.Errorf("after %d of 5, %v remain", len(names), left)
		}
	}
	if diff := cmp.Diff([]string{"b0", "b1", "b2", "b3", "b4"}, names); diff != "" {
		t.Errorf("pages (-want +got):\n%s", diff)
	}
	lab.AwaitPhase(t, namespace, "b9", v1alpha1.BackupPhaseCompleted)
}

// TestFieldSelectors: a selector on a field that can't be selected is refused by
// name, for it would match nothing, or everything.
func TestFieldSelectors(t *testing.T) {
	t.Parallel()
	for resource, of := range map[string]struct {
		kind       string
		selectable []string
	}{
		"backups":       {"Backup", backup.Resource.Selectable()},
		"backupqueues":  {"BackupQueueEntry", backup.QueueResource.Selectable()},
		"backupvolumes": {"BackupVolume", volumebackup.VolumeResource.Selectable()},
		"volumebackups": {"VolumeBackup", volumebackup.Resource.Selectable()},
		"nodeagents":    {"NodeAgent", nodeagent.Resource.Selectable()},
		"protections":   {"Protection", protection.Resource.Selectable()},
	} {
		lab.Refused(t, "", []string{"get", resource, "-A", "--field-selector", "spec.bad=1"}, "BadRequest", `"spec.bad"`, of.kind)
		response := lab.Request(t, http.MethodGet, api+"/"+resource+"?fieldSelector=spec.bad%3D1", "")
		if response.Code != http.StatusBadRequest || !strings.Contains(string(response.Body), "spec.bad") {
			t.Errorf("a list of %s by spec.bad is answered with %d: %s", resource, response.Code, response.Body)
		}
		for _, field := range of.selectable {
			lab.Kubectl(t, "get", resource, "-A", "--field-selector", field+"=x")
		}
	}
}

// TestVersionsThatWereNeverIssued are answered with 410, so that a client lists
// again instead of waiting for ever, or of missing what happened.
func TestVersionsThatWereNeverIssued(t *testing.T) {
	t.Parallel()
	for _, resource := range []string{"backups", "backupqueues", "backupvolumes", "nodeagents"} {
		list := lab.Request(t, http.MethodGet, api+"/"+resource, "")
		var meta struct{ Metadata metav1.ListMeta }
		if err := json.Unmarshal(list.Body, &meta); err != nil {
			t.Fatal(err)
		}
		current, err := strconv.ParseUint(meta.Metadata.ResourceVersion, 10, 64)
		if err != nil {
			t.Fatalf("the resourceVersion of %s is not a number: %v", resource, err)
		}
		for _, version := range []uint64{1, current + 1_000_000_000} {
			stream := lab.Watch(t, "", fmt.Sprintf("%s/%s?watch=1&resourceVersion=%d", api, resource, version), "")
			select {
			case <-stream.Ended():
			case <-t.Context().Done():
			}
			if text := stream.Text(); !strings.Contains(text, `"type":"ERROR"`) || !strings.Contains(text, `"code":410`) {
				t.Errorf("a watch of %s from %d answers %s", resource, version, text)
			}
		}
		exact := lab.Request(t, http.MethodGet, api+"/"+resource+"?resourceVersion=1&resourceVersionMatch=Exact", "")
		if exact.Code != http.StatusGone {
			t.Errorf("a list of %s at 1 is answered with %d: %s", resource, exact.Code, exact.Body)
		}
		future := lab.Request(t, http.MethodGet, fmt.Sprintf("%s/%s?resourceVersion=%d&resourceVersionMatch=NotOlderThan", api, resource, current+1_000_000_000), "")
		if future.Code != http.StatusGatewayTimeout {
			t.Errorf("a list of %s not older than the future is answered with %d: %s", resource, future.Code, future.Body)
		}
	}
	if response := lab.Request(t, http.MethodGet, api+"/volumebackups?watch=1", ""); response.Code != http.StatusMethodNotAllowed {
		t.Errorf("a watch of volumebackups is answered with %d: %s", response.Code, response.Body)
	}
}

// TestWatchList: the initial events end with the bookmark that informers wait for.
func TestWatchList(t *testing.T) {
	t.Parallel()
	namespace := series(t)
	stream := lab.Watch(t, "", api+"/namespaces/"+namespace+"/backups?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", "")
	labtest.Eventually(t, "the bookmark after the initial events", func() error {
		if text := stream.Text(); !strings.Contains(text, `"BOOKMARK"`) || !strings.HasSuffix(text, "\n") {
			return fmt.Errorf("so far there is %s", text)
		}
		return nil
	})
	stream.Close()
	lines := bufio.NewScanner(strings.NewReader(stream.Text()))
	lines.Buffer(nil, 1<<20)
	var got []string
	for lines.Scan() {
		var event struct {
			Type   string
			Object v1alpha1.Backup
		}
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			t.Fatal(err)
		}
		got = append(got, strings.TrimSpace(event.Type+" "+event.Object.Name))
		if event.Type == "BOOKMARK" && event.Object.Annotations[metav1.InitialEventsAnnotationKey] != "true" {
			t.Errorf("the bookmark is not marked: %s", lines.Bytes())
		}
	}
	if diff := cmp.Diff([]string{"ADDED b0", "ADDED b1", "ADDED b2", "ADDED b3", "ADDED b4", "BOOKMARK"}, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// TestWatchingABackup: kubectl get -w shows one backup changing, from its
// creation until it comes from the store, and never a deletion.
func TestWatchingABackup(t *testing.T) {
	t.Parallel()
	namespace := lab.Namespace(t, "watched")
	ctx, cancel := context.WithCancel(t.Context())
	watching := lab.Command(ctx, "get", "backups", "-n", namespace, "-w", "--output-watch-events")
	var rows lockedBuffer
	watching.Stdout, watching.Stderr = &rows, &rows
	if err := watching.Start(); err != nil {
		t.Fatal(err)
	}
	stream := lab.Watch(t, "", api+"/namespaces/"+namespace+"/backups?watch=1", "")
	lab.Create(t, namespace, "only", v1alpha1.BackupSpec{})
	lab.Kubectl(t, "wait", "-n", namespace, "--for=condition=Succeeded", "--timeout=120s", "backup/only")
	lab.Kubectl(t, "wait", "-n", namespace, "--for=jsonpath={.status.phase}=Completed", "--timeout=120s", "backup/only")
	lab.AwaitRunGone(t, namespace+".only")
	labtest.Eventually(t, "kubectl to show the end", func() error {
		if !strings.Contains(rows.String(), "Completed") {
			return fmt.Errorf("so far it shows\n%s", rows.String())
		}
		return nil
	})
	// The stored backup says which version its cluster had, the record does not.
	labtest.Eventually(t, "the stored backup to be shown", func() error {
		if !strings.Contains(stream.Text(), "velero.io/source-cluster-k8s-gitversion") {
			return fmt.Errorf("so far there is %s", stream.Text())
		}
		return nil
	})
	cancel()
	_ = watching.Wait() // it was killed
	if text := rows.String(); strings.Contains(text, "DELETED") || strings.Count(text, "EVENT") != 1 {
		t.Errorf("kubectl get -w prints\n%s", text)
	}
	if text := stream.Text(); strings.Contains(text, `"DELETED"`) || strings.Count(text, `"ADDED"`) != 1 {
		t.Errorf("the watch shows\n%s", text)
	}
}
