// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// TestSync: a location that is not polled has what is asked for, by a syncrequest or an
// annotation; what the store has lost without a word stays in the lists until that is
// accepted; and the location's status says so, and is written when it changes only.
func TestSync(t *testing.T) {
	t.Parallel()
	location, folder := lab.Location(t, "synced")
	locations := lab.Engine.EngineV1alpha1().StorageLocations(labtest.System)
	patch := func(patch string) {
		t.Helper()
		if _, err := locations.Patch(t.Context(), location, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	annotate := func(annotation, value string) {
		t.Helper()
		patch(fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, annotation, value))
	}
	get := func() *enginev1alpha1.StorageLocation {
		t.Helper()
		record, err := locations.Get(t.Context(), location, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return record
	}
	sync := func() int64 {
		t.Helper()
		request := &v1alpha1.SyncRequest{ObjectMeta: metav1.ObjectMeta{Name: location}}
		answer, err := lab.Holdfast.HoldfastV1alpha1().SyncRequests(labtest.System).Create(t.Context(), request, metav1.CreateOptions{})
		if err != nil || answer.Status.Generation == 0 {
			t.Fatalf("asking for it says %+v, with the error %v", answer, err)
		}
		return answer.Status.Generation
	}
	wait := func() {
		t.Helper()
		for _, condition := range []string{"Synced", "Probed"} {
			lab.Kubectl(t, "wait", "-n", labtest.System, "storagelocation/"+location, "--for=condition="+condition, "--timeout=60s")
		}
	}
	prefix := labtest.Name("others")
	name := func(i int) string { return fmt.Sprintf("%s-%02d", prefix, i) }
	store := func(folder, name string, i int) {
		t.Helper()
		at := metav1.NewTime(time.Date(2026, 11, 20, 10, 0, i, 0, time.UTC))
		metadata, err := format.EncodeBackup(&v1alpha1.Backup{
			ObjectMeta: metav1.ObjectMeta{Namespace: labtest.System, Name: name, UID: types.UID(name), CreationTimestamp: at},
			Status:     v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseCompleted, StartTimestamp: &at, CompletionTimestamp: &at},
		}, format.Contents{}, format.Cluster{SystemNamespace: labtest.System})
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(folder, filepath.FromSlash(format.MetadataKey(name)))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, metadata, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	listed := func() int {
		t.Helper()
		return strings.Count(lab.Kubectl(t, "get", "hfb", "-n", labtest.System, "-o", "name"), "/"+prefix)
	}

	patch(`{"spec":{"pollInterval":"0s"}}`)
	lab.AwaitAvailable(t, location, metav1.ConditionTrue)
	sync()
	wait()
	const all = 14
	for i := range all {
		store(folder, name(i), i)
	}
	before := get()
	mark := lab.AuditMark(t)
	// Another location is polled twice meanwhile.
	_, polled := lab.Location(t, "polled")
	for i := range 2 {
		known := labtest.Name("polled")
		store(polled, known, i)
		labtest.Eventually(t, "a poll", func() error {
			_, err := lab.Holdfast.HoldfastV1alpha1().Backups(labtest.System).Get(t.Context(), known, metav1.GetOptions{})
			return err
		})
	}
	if got := listed(); got != 0 {
		t.Errorf("%d are listed, and nobody has asked", got)
	}
	for _, write := range lab.WritesSince(t, mark) {
		if ref := write.ObjectRef; ref != nil && ref.Resource == "storagelocations" && ref.Name == location {
			t.Errorf("nothing has changed, and %s writes the location", write.User.Username)
		}
	}
	generation := sync()
	wait()
	record := get()
	if generation <= before.Generation || record.Generation != generation || listed() != all {
		t.Errorf("generation %d after %d, and %d are listed", generation, before.Generation, listed())
	}
	if synced := meta.FindStatusCondition(record.Status.Conditions, enginev1alpha1.ConditionSynced); synced.ObservedGeneration != generation {
		t.Errorf("the location says %+v", synced)
	}

	for i := range all - 1 {
		if err := os.RemoveAll(filepath.Join(folder, filepath.FromSlash(format.BackupPrefix(name(i))))); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		sync()
		wait()
	}
	if got := listed(); got != all {
		t.Errorf("%d are listed after a loss that nobody has accepted", got)
	}
	lab.Kubectl(t, "wait", "-n", labtest.System, "storagelocation/"+location, "--for=condition=BackupsMissing", "--timeout=60s")
	if _, stderr, err := lab.TryKubectl(t, "", "get", "hfb", "-n", labtest.System); err != nil || !strings.Contains(stderr, "lacks 13 of 14 known backups") {
		t.Errorf("a list warns of %q, %v", stderr, err)
	}
	labtest.Eventually(t, "an event", func() error {
		if events := lab.Kubectl(t, "get", "events", "-n", labtest.System, "--field-selector=reason=BackupsMissing"); !strings.Contains(events, location) {
			return fmt.Errorf("there are the events\n%s", events)
		}
		return nil
	})

	annotate(enginev1alpha1.AnnotationAcceptLoss, time.Now().UTC().Format(time.RFC3339Nano))
	annotate(enginev1alpha1.AnnotationSync, "now")
	lab.Kubectl(t, "wait", "-n", labtest.System, "storagelocation/"+location, "--for=jsonpath={.status.catalogue.syncRequest}=now", "--timeout=60s")
	lab.Kubectl(t, "wait", "-n", labtest.System, "storagelocation/"+location, "--for=condition=BackupsMissing=false", "--timeout=60s")
	if got := listed(); got != 1 {
		t.Errorf("%d are listed after the loss was accepted", got)
	}
	t.Log(lab.Kubectl(t, "get", "hfl", "-n", labtest.System, location, "-o", "yaml"))
}
