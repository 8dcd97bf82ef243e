// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kopia/kopia/repo/manifest"
	"github.com/kopia/kopia/snapshot"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	clocktesting "k8s.io/utils/clock/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup/archive"
	"github.com/holdfast-io/holdfast/pkg/datapath"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/identity"
	maintainer "github.com/holdfast-io/holdfast/pkg/maintenance"
	"github.com/holdfast-io/holdfast/pkg/repository"
	"github.com/holdfast-io/holdfast/pkg/repository/opener"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// restored is how many snapshots of each cluster and location are written to a
// folder and compared with the files: few after a short time, and after a long one as many as
// that takes about a minute for.
func restored() int {
	if !long() {
		return 5
	}
	return 500
}

// stored is a backup as it lies in a store.
type stored struct {
	key       types.UID
	location  string
	name      string
	phase     v1alpha1.BackupPhase
	cluster   *cluster
	snapshots []string
}

// checkStores checks that every backup in the stores is whole, and holds what its own
// cluster has; that nothing is missing that was shown as stored; and that there are
// no snapshots but those that backups list.
func checkStores(t *testing.T, clusters []*cluster, specs map[string]*enginev1alpha1.StorageLocationSpec) {
	t.Helper()
	found := map[types.UID]stored{}
	for location, spec := range specs {
		var secret map[string][]byte
		if spec.S3 != nil {
			content, err := clusters[0].Kube.CoreV1().Secrets(enginev1alpha1.CredentialsNamespace(labtest.System)).Get(t.Context(), spec.S3.CredentialsSecret, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			secret = content.Data
		}
		bucket, err := store.Open(t.Context(), spec, secret)
		if err != nil {
			t.Fatal(err)
		}
		folders := map[string]sets.Set[string]{}
		for object, err := range bucket.List(t.Context(), format.BackupsPrefix, store.ListOptions{Recursive: true}) {
			if err != nil {
				t.Fatal(err)
			}
			name, file, _ := strings.Cut(strings.TrimPrefix(object.Key, format.BackupsPrefix), "/")
			if folders[name] == nil {
				folders[name] = sets.New[string]()
			}
			folders[name].Insert(file)
		}
		phases := map[v1alpha1.BackupPhase]int{}
		for _, name := range slices.Sorted(maps.Keys(folders)) {
			s, err := checkFolder(t, clusters, bucket, name, folders[name])
			switch {
			case err != nil && location == before: // it may have been under way; an ended one is missed below
				t.Logf("%s: backup %s with the files %v: %v", location, name, sets.List(folders[name]), err)
				continue
			case err != nil:
				t.Errorf("%s: backup %s with the files %v: %v", location, name, sets.List(folders[name]), err)
				continue
			}
			phases[s.phase]++
			s.location = location
			found[s.key] = s
		}
		t.Logf("%s: %d folders: %v", location, len(folders), phases)
		for _, c := range clusters {
			c.checkSnapshots(t, location, spec, found)
		}
		if err := bucket.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, c := range clusters {
		shown, missing := 0, 0
		for uid, m := range c.created {
			if !m.stored || m.deleted {
				continue
			}
			shown++
			if s, ok := found[uid]; !ok || !isStored(s.phase) {
				missing++
				t.Errorf("cluster %s: %s (%s) in %s was shown as stored, and is %q in the store", c.name, m.name, uid, m.location, s.phase)
			}
		}
		t.Logf("cluster %s: %d of %d backups were shown as stored and not deleted; %d of them are missing", c.name, shown, len(c.created), missing)
	}
}

// checkFolder reads a backup in full.
func checkFolder(t *testing.T, clusters []*cluster, from store.Reader, name string, files sets.Set[string]) (stored, error) {
	t.Helper()
	raw, err := read(t, from, format.MetadataKey(name))
	if errors.Is(err, store.ErrNotFound) {
		return stored{}, errors.New("there is no metadata")
	}
	if err != nil {
		return stored{}, err
	}
	backup, err := format.DecodeBackup(raw, format.Place{StoreName: name, SystemNamespace: labtest.System})
	if err != nil {
		return stored{}, err
	}
	var metadata metav1.PartialObjectMetadata
	if err := json.Unmarshal(raw, &metadata); err != nil {
		return stored{}, err
	}
	s := stored{key: backup.UID, name: name, phase: backup.Status.Phase}
	for _, c := range clusters {
		if metadata.Annotations[format.AnnotationClusterUID] == c.uid {
			s.cluster = c
		}
	}
	if s.cluster == nil {
		return s, errors.New("it is of no cluster")
	}
	owner, err := read(t, from, format.OwnerKey(name))
	if err != nil {
		return s, err
	}
	if owner, err := format.DecodeOwner(owner); err != nil || owner.UID != backup.UID {
		return s, fmt.Errorf("the folder belongs to %s, and the backup is %s: %w", owner.UID, backup.UID, err)
	}
	if !isStored(s.phase) {
		return s, nil
	}
	if err := checkContents(t, from, name, backup); err != nil {
		return s, err
	}
	if err := checkTarball(t, from, name, backup, s.cluster); err != nil {
		return s, err
	}
	content, err := from.Get(t.Context(), format.PodVolumeBackupsKey(name))
	if err != nil {
		return s, err
	}
	defer content.Close()
	return s, format.ReadPodVolumeBackups(content, func(volume format.PodVolumeBackup) error {
		if volume.Status.SnapshotID != "" {
			s.snapshots = append(s.snapshots, volume.Status.SnapshotID)
		}
		return nil
	})
}

// checkContents checks that all objects are as the metadata says.
func checkContents(t *testing.T, from store.Reader, name string, backup *v1alpha1.Backup) error {
	t.Helper()
	contents, err := format.TakeContents(backup)
	if err != nil {
		return err
	}
	if _, ok := contents.Of(format.TarballKey(name)); !ok {
		return fmt.Errorf("the metadata knows no tarball, only %v", contents)
	}
	for file, want := range contents {
		content, err := read(t, from, format.BackupPrefix(name)+file)
		if err != nil {
			return err
		}
		if got := format.NewContent(content); got != want {
			return fmt.Errorf("%s has %+v, and the metadata says %+v", file, got, want)
		}
	}
	return nil
}

// checkTarball checks that the tarball has all ConfigMaps of the backup's namespaces,
// as they are in its own cluster.
func checkTarball(t *testing.T, from store.Reader, name string, backup *v1alpha1.Backup, c *cluster) error {
	t.Helper()
	content, err := from.Get(t.Context(), format.TarballKey(name))
	if err != nil {
		return err
	}
	defer content.Close()
	reader, err := archive.NewReader(content)
	if err != nil {
		return err
	}
	settings := map[string]int{}
	for {
		entry, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if entry.Versioned || !strings.HasPrefix(entry.Name, "settings-") {
			continue
		}
		var object struct {
			Data map[string]string `json:"data"`
		}
		if err := json.NewDecoder(reader).Decode(&object); err != nil {
			return fmt.Errorf("%s: %w", entry.Path, err)
		}
		if object.Data["cluster"] != c.name {
			return fmt.Errorf("%s is of cluster %q, and the backup of cluster %q", entry.Path, object.Data["cluster"], c.name)
		}
		settings[entry.Namespace]++
	}
	for _, namespace := range backup.Spec.IncludedNamespaces {
		if settings[namespace] != configMaps {
			return fmt.Errorf("the tarball has %d ConfigMaps of namespace %s, not %d", settings[namespace], namespace, configMaps)
		}
	}
	return nil
}

// checkSnapshots checks the repository of a cluster at a location.
func (c *cluster) checkSnapshots(t *testing.T, location string, spec *enginev1alpha1.StorageLocationSpec, found map[types.UID]stored) {
	t.Helper()
	name := location
	if location == before {
		name = locked // has the key of the repository
	}
	record, err := c.Engine.EngineV1alpha1().StorageLocations(labtest.System).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	record.Spec = *spec
	// Also of backups whose creation had no answer, which nobody here knows by their uids.
	listed := sets.New[string]()
	for _, s := range found {
		if s.cluster == c && s.location == location {
			listed.Insert(s.snapshots...)
		}
	}
	compared := 0
	labtest.Eventually(t, "the snapshots of cluster "+c.name, func() error {
		// The maintenance removes those that no backup lists. Without a repository there is none.
		if location != before {
			if output, err := c.Program(t, c.maintenanceOf(location)...); err != nil {
				t.Logf("cluster %s: maintaining the repository at %s: %v: %s", c.name, location, err, output)
			}
		}
		opened, err := opener.OpenAt(t.Context(), c.Kube.CoreV1().Secrets(enginev1alpha1.CredentialsNamespace(labtest.System)),
			c.Kube.CoreV1().Secrets(enginev1alpha1.KeysNamespace(labtest.System)), record, c.files, repository.Options{})
		if errors.Is(err, opener.ErrNoRepository) && listed.Len() == 0 {
			return nil
		}
		if err != nil {
			return err
		}
		defer opened.Close(t.Context())
		if location != before {
			if err := c.sweepTomorrow(t, opened, record); err != nil {
				return err
			}
		}
		entries, err := opened.Kopia().FindManifests(t.Context(), map[string]string{manifest.TypeLabelKey: snapshot.ManifestType})
		if err != nil {
			return err
		}
		there, made := sets.New[string](), map[string]string{}
		for _, entry := range entries {
			id := string(entry.ID)
			there.Insert(id)
			made[id] = fmt.Sprintf("%s of the backup %s, saved at %s", id, entry.Labels["holdfast.io/backup-uid"], entry.ModTime.UTC().Format(time.RFC3339))
		}
		lost, orphaned := listed.Difference(there), there.Difference(listed)
		if location == before {
			orphaned = nil // they are of backups that had not ended
		}
		if lost.Len()+orphaned.Len() > 0 {
			var whose []string
			for _, id := range sets.List(orphaned) {
				whose = append(whose, made[id])
			}
			return fmt.Errorf("%s: of %d snapshots that backups list, these are missing: %v; no backup lists %v", location, listed.Len(), sets.List(lost), whose)
		}
		compared = 0
		for _, id := range sets.List(listed)[:min(restored(), listed.Len())] {
			compared++
			if err := c.compare(t, opened, id); err != nil {
				return fmt.Errorf("snapshot %s: %w", id, err)
			}
		}
		return nil
	})
	t.Logf("cluster %s: %s has %d snapshots, all listed; %d were restored and compared", c.name, location, listed.Len(), compared)
}

// sweepTomorrow removes the snapshots that no stored backup lists: they go when they are a day old.
func (c *cluster) sweepTomorrow(t *testing.T, opened *repository.Repository, record *enginev1alpha1.StorageLocation) error {
	t.Helper()
	published, err := c.Kube.CoreV1().ConfigMaps(labtest.System).Get(t.Context(), identity.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	own := identity.Of(published)
	tomorrow := maintainer.Maintainer{
		Secrets:    c.Kube.CoreV1().Secrets(enginev1alpha1.CredentialsNamespace(labtest.System)),
		ClusterUID: own.UID, PublicKeys: own.Keys, AcceptMissing: true,
		Clock: clocktesting.NewFakeClock(time.Now().Add(25 * time.Hour)),
	}
	var swept maintainer.Result
	if err := tomorrow.MaintainOpened(t.Context(), opened, record, c.files, &swept); err != nil {
		return err
	}
	if swept.SweptSnapshots > 0 {
		t.Logf("cluster %s: %s: a day later %d snapshots go that no backup lists", c.name, record.Name, swept.SweptSnapshots)
	}
	return nil
}

// checkLists checks that a new API server shows what the one before it did.
func (c *cluster) checkLists(t *testing.T) {
	t.Helper()
	shown := func() (map[string]string, error) {
		list, err := c.Holdfast.HoldfastV1alpha1().Backups("").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		backups := map[string]string{}
		for _, backup := range list.Items {
			backups[backup.Namespace+"/"+backup.Name] = fmt.Sprint(backup.UID, " ", backup.Status.Phase)
		}
		return backups, nil
	}
	// What has ended lately is read from the store in its turn.
	var before map[string]string
	same := func() error {
		first, err := shown()
		if err != nil {
			return err
		}
		if !maps.Equal(before, first) {
			before = first
			return errors.New("the list still changes")
		}
		return nil
	}
	labtest.Eventually(t, "the list of cluster "+c.name, same)
	want := maps.Clone(before)
	c.must(t, func() error { return c.Restart(t.Context(), labtest.APIServer) })
	labtest.Eventually(t, "the list of cluster "+c.name+" after a restart", func() error {
		got, err := shown()
		if err != nil {
			return err
		}
		for name := range sets.KeySet(got).Union(sets.KeySet(want)) {
			// What another cluster ends is found when its turn comes to be read again,
			// which a new API server need not wait for.
			if got[name] != want[name] && (want[name] != "" || c.made(got[name])) {
				return fmt.Errorf("%s was %q, and is %q", name, want[name], got[name])
			}
		}
		return nil
	})
	t.Logf("cluster %s: %d backups are listed, by a new API server as by the one before", c.name, len(want))
}

// made reports whether what is listed, which begins with its uid, is this cluster's.
func (c *cluster) made(listed string) bool {
	uid, _, _ := strings.Cut(listed, " ")
	return c.created[types.UID(uid)] != nil
}

// compare restores a snapshot into a folder of its own.
func (c *cluster) compare(t *testing.T, from *repository.Repository, id string) error {
	t.Helper()
	folder := t.TempDir()
	if _, err := datapath.Restore(t.Context(), from, datapath.RestoreRequest{SnapshotID: id, Path: folder}, &datapath.Progress{}); err != nil {
		return err
	}
	return errors.Join(sameFiles(c.folder, folder), os.RemoveAll(folder))
}

// sameFiles compares two folders without folders.
func sameFiles(original, back string) error {
	want, err := filesOf(original)
	if err != nil {
		return err
	}
	got, err := filesOf(back)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		content, there := got[name]
		switch {
		case !there:
			return fmt.Errorf("%s did not come back", name)
		case content != want[name]:
			return fmt.Errorf("%s is %q, and came back as %q", name, want[name], content)
		}
		delete(got, name)
	}
	if len(got) > 0 {
		return fmt.Errorf("nobody stored %v", slices.Sorted(maps.Keys(got)))
	}
	return nil
}

// filesOf are the files of a folder, with their contents.
func filesOf(folder string) (map[string]string, error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	files := map[string]string{}
	for _, entry := range entries {
		content, err := os.ReadFile(filepath.Join(folder, entry.Name()))
		if err != nil {
			return nil, err
		}
		files[entry.Name()] = string(content)
	}
	return files, nil
}

// The judge of the snapshots sees what is missing, other, or too much.
func TestSameFiles(t *testing.T) {
	for name, c := range map[string]struct {
		back map[string]string
		want string
	}{
		"the same": {map[string]string{"a": "1", "b": "2"}, ""},
		"missing":  {map[string]string{"a": "1"}, "b did not come back"},
		"other":    {map[string]string{"a": "1", "b": "3"}, `b is "2", and came back as "3"`},
		"too much": {map[string]string{"a": "1", "b": "2", "c": "3"}, "nobody stored [c]"},
	} {
		original, back := t.TempDir(), t.TempDir()
		for folder, files := range map[string]map[string]string{original: {"a": "1", "b": "2"}, back: c.back} {
			for file, content := range files {
				if err := os.WriteFile(filepath.Join(folder, file), []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
		got := ""
		if err := sameFiles(original, back); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: it says %q, want %q", name, got, c.want)
		}
	}
}

func read(t *testing.T, from store.Reader, key string) ([]byte, error) {
	t.Helper()
	content, err := from.Get(t.Context(), key)
	if err != nil {
		return nil, err
	}
	defer content.Close()
	return io.ReadAll(content)
}
