// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// TestKilledAgainAndAgain kills the controller many times, and the API server now
// and then, while backups drain: at whatever step that is, every backup ends, no
// more fail than were running, those that overlap keep their order, informers see
// what is served, and the store holds nothing half done.
func TestKilledAgainAndAgain(t *testing.T) {
	const kills = 8
	processes := []*informers{startInformers(t, true), startInformers(t, false)}
	starts := watchStarts(t)
	lines := make([][]string, 3) // the backups of one namespace each, which run in order
	for line := range lines {
		namespace := lab.Namespace(t, "line")
		for range 2 * kills {
			name := labtest.Name(fmt.Sprint("of-line-", line))
			lab.Backup(t, name, namespace)
			lines[line] = append(lines[line], name)
		}
	}
	for kill := range kills {
		// The moment differs each time by what the machine makes of it.
		before := len(starts.names())
		labtest.Eventually(t, "the next start", func() error {
			if len(starts.names()) == before && before < len(slices.Concat(lines...)) {
				return fmt.Errorf("%d have started", before)
			}
			return nil
		})
		lab.Kill(t, labtest.Controller)
		bury(t, labtest.Controller) // else there is time for a few kills only
		if kill%4 == 0 {
			lab.Kill(t, labtest.APIServer)
			lab.Start(t, labtest.APIServer)
		}
		lab.Start(t, labtest.Controller)
	}

	failed := 0
	for _, name := range slices.Concat(lines...) {
		backup := lab.AwaitPhase(t, labtest.System, name, v1alpha1.BackupPhaseCompleted, v1alpha1.BackupPhaseFailed)
		if backup.Status.Phase == v1alpha1.BackupPhaseFailed {
			failed++
			if !strings.Contains(backup.Status.FailureReason, "the controller stopped") {
				t.Errorf("%s failed for the reason %q", name, backup.Status.FailureReason)
			}
		}
	}
	t.Logf("%d kills let %d of %d backups fail", kills, failed, len(slices.Concat(lines...)))
	if failed > kills*slots {
		t.Errorf("%d kills let %d backups fail, more than could run", kills, failed)
	}
	for _, name := range slices.Concat(lines...) {
		lab.AwaitRunGone(t, name)
		// As it is stored.
		lab.AwaitPhase(t, labtest.System, name, v1alpha1.BackupPhaseCompleted, v1alpha1.BackupPhaseFailed)
	}
	for _, process := range processes {
		process.agree(t)
	}
	order := starts.names()
	for _, line := range lines {
		var got []string
		for _, name := range order {
			if slices.Contains(line, name) {
				got = append(got, name)
			}
		}
		if !slices.Equal(line, got) {
			t.Errorf("they were started in the order %v, not %v", got, line)
		}
	}
	entries, err := lab.Holdfast.HoldfastV1alpha1().BackupQueueEntries("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(entries.Items) != 0 {
		t.Errorf("the queue still has %v", entries.Items)
	}
	for _, name := range slices.Concat(lines...) {
		checkFolder(t, filepath.Join(lab.Dir, "store", format.BackupPrefix(name)), name)
	}
}

// checkFolder checks that the store holds all of a completed backup, and of a
// failed one no more than what says so.
func checkFolder(t *testing.T, folder, name string) {
	t.Helper()
	var kept []string
	for _, file := range files(t, folder) {
		// To create a file that must not exist yet, it is written under another name,
		// and linked. Who is killed between that and the removal of the other name has
		// stored the backup.
		if strings.HasSuffix(file, ".tmp") && slices.ContainsFunc([]string{"velero-backup.json", "holdfast-backup.json"}, func(of string) bool {
			return sameFile(t, filepath.Join(folder, file), filepath.Join(folder, of))
		}) {
			continue
		}
		if format.IsAttemptKey(name, format.BackupPrefix(name)+file) { // of each attempt
			continue
		}
		kept = append(kept, strings.TrimPrefix(file, name))
	}
	want := []string{"-logs.gz", "-results.gz", "holdfast-owner.json", "velero-backup.json"}
	backup := lab.AwaitPhase(t, labtest.System, name, v1alpha1.BackupPhaseCompleted, v1alpha1.BackupPhasePartiallyFailed, v1alpha1.BackupPhaseFailed)
	if backup.Status.Phase != v1alpha1.BackupPhaseFailed {
		want = append(want, "-itemoperations.json.gz", "-podvolumebackups.json.gz", "-resource-list.json.gz",
			"-volumeinfo.json.gz", "-volumesnapshots.json.gz", ".tar.gz", "manifest.json.gz")
	}
	slices.Sort(want)
	slices.Sort(kept)
	if !slices.Equal(want, kept) {
		t.Errorf("of %s, which is %s, the store holds %v, not %v", name, backup.Status.Phase, kept, want)
	}
}

func sameFile(t *testing.T, one, other string) bool {
	t.Helper()
	var infos [2]os.FileInfo
	for i, path := range []string{one, other} {
		var err error
		if infos[i], err = os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			return false
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return os.SameFile(infos[0], infos[1])
}
