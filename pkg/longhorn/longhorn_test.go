// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package longhorn_test

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/holdfast-io/holdfast/pkg/longhorn"
	"github.com/holdfast-io/holdfast/pkg/longhorn/longhorntest"
)

func contents(t testing.TB) map[string][]byte {
	files := map[string][]byte{}
	for _, file := range longhorntest.Fixture(t) {
		files[file.Key] = file.Content
	}
	return files
}

func text(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Format(time.RFC3339)
}

// What is read of each volume and backup is what Longhorn's library says of it.
func TestReadsWhatTheLibrarySays(t *testing.T) {
	files, expect := contents(t), longhorntest.Expect(t)
	for name, want := range expect.InspectVolume {
		content, found := files[longhorn.VolumeKey(name)]
		if found == (want.Error != "") {
			t.Errorf("volume %s is there: %t, but the library says %q", name, found, want.Error)
		}
		if !found {
			continue
		}
		v, err := longhorn.ReadVolume(bytes.NewReader(content))
		if err != nil {
			t.Errorf("volume %s: %v", name, err)
			continue
		}
		got := longhorntest.Volume{
			Name: v.Name, Size: strconv.FormatInt(v.SizeBytes, 10), Created: text(v.Created), LastBackupName: v.LastBackup, LastBackupAt: v.LastBackupAt,
			DataStored: strconv.FormatInt(v.Blocks*longhorn.DefaultBlockBytes, 10), BackingImageName: v.BackingImage, BackingImageChecksum: v.BackingImageChecksum,
			StorageClassname: v.StorageClass, DataEngine: v.DataEngine,
		}
		if !maps.Equal(v.Labels, want.Labels) {
			t.Errorf("labels of volume %s: %v, want %v", name, v.Labels, want.Labels)
		}
		want.Labels, want.Messages = nil, nil
		if !reflect.DeepEqual(got, want) {
			t.Errorf("volume %s:\n%+v, want\n%+v", name, got, want)
		}
		for backup, wantBackup := range expect.Inspect[name] {
			b, err := longhorn.ReadBackup(bytes.NewReader(files[longhorn.BackupKey(name, backup)]), nil)
			if err != nil {
				t.Errorf("backup %s: %v", backup, err)
				continue
			}
			if !b.Finished {
				if want := "backup " + backup + " is still in progress"; wantBackup.Error != want || b.Name != backup || b.VolumeName != name {
					t.Errorf("backup %s is not finished, but the library says %+v", backup, wantBackup)
				}
				continue
			}
			got := longhorntest.Backup{
				Name: b.Name, SnapshotName: b.SnapshotName, SnapshotCreated: text(b.SnapshotCreated), Created: text(b.Created),
				Size: strconv.FormatInt(b.SizeBytes, 10), IsIncremental: b.Incremental, CompressionMethod: b.Compression,
				NewlyUploadedDataSize: strconv.FormatInt(b.NewBytes, 10), ReUploadedDataSize: strconv.FormatInt(b.ReuploadedBytes, 10),
				VolumeName: b.VolumeName, VolumeSize: strconv.FormatInt(v.SizeBytes, 10), VolumeCreated: text(v.Created), VolumeBackingImageName: v.BackingImage,
			}
			if !maps.Equal(b.Labels, wantBackup.Labels) || !maps.Equal(b.Parameters, wantBackup.Parameters) {
				t.Errorf("backup %s has other labels or parameters: %v %v", backup, b.Labels, b.Parameters)
			}
			wantBackup.Labels, wantBackup.Parameters, wantBackup.URL = nil, nil, "" // which is ours to make
			if !reflect.DeepEqual(got, wantBackup) {
				t.Errorf("backup %s:\n%+v, want\n%+v", backup, got, wantBackup)
			}
		}
	}
}

// Every key of the store is found again from what it stands for.
func TestKeys(t *testing.T) {
	for key := range contents(t) {
		folder, rest, isVolume := strings.Cut(key, longhorn.VolumesPrefix)
		if !isVolume || folder != "" {
			continue
		}
		parts := strings.Split(rest, "/")
		volume, ok := longhorn.VolumeOf(longhorn.VolumesPrefix + strings.Join(parts[:3], "/") + "/")
		if !ok || longhorn.VolumeShard(volume) != parts[0] {
			t.Errorf("%s is of no volume", key)
			continue
		}
		again := ""
		switch parts[3] {
		case "volume.cfg":
			again = longhorn.VolumeKey(volume)
		case "backups":
			backup, _ := longhorn.BackupOf(key)
			again = longhorn.BackupKey(volume, backup)
		case "blocks":
			checksum, _ := longhorn.ChecksumOf(key)
			again = longhorn.BlockKey(longhorn.BlocksPrefix(volume), checksum)
		case "locks":
			lock, _ := longhorn.LockOf(key)
			again = longhorn.LockKey(volume, lock)
		}
		if again != key {
			t.Errorf("%s is found again as %q", key, again)
		}
	}
	for _, folder := range []string{"lost+found/", "22/fc/BACKINGIMAGE/", "00/00/db-data/", "9b/7f/d/", "9b/7f/../", "9b/7f//", ""} {
		if volume, ok := longhorn.VolumeOf(longhorn.VolumesPrefix + folder); ok {
			t.Errorf("%q is taken for the volume %q", folder, volume)
		}
	}
	if prefix := longhorn.LocksPrefix(longhorn.ImagesVolume); prefix != "backupstore/volumes/22/fc/BACKINGIMAGE/locks/" {
		t.Errorf("the locks of backing images lie in %s", prefix)
	}
}

// Of a backup no more is read than what comes before its blocks.
func TestReadsTheFrontOnly(t *testing.T) {
	full := contents(t)[longhorn.BackupKey("legacy-disk", "backup-93a4b5c6d7e8f90a")]
	at := bytes.Index(full, []byte(`"Blocks":`))
	front := io.MultiReader(bytes.NewReader(full[:at+len(`"Blocks":`)]), iotest.ErrReader(io.ErrClosedPipe))
	b, err := longhorn.ReadBackup(front, nil)
	if err != nil || !b.Finished || b.BlockBytes() != 16<<20 {
		t.Errorf("the front alone gives %+v, %v", b, err)
	}
	blocks := 0
	if _, err := longhorn.ReadBackup(bytes.NewReader(full), func(longhorn.Checksum) error { blocks++; return nil }); err != nil || blocks != 2 {
		t.Errorf("%d blocks, %v, want 2", blocks, err)
	}
	for end := range at {
		if _, err := longhorn.ReadBackup(bytes.NewReader(full[:end]), nil); err == nil {
			t.Fatalf("it can be read though it ends after %d bytes: %s", end, full[:end])
		}
	}
	for end := at; end < len(full); end++ {
		if _, err := longhorn.ReadBackup(bytes.NewReader(full[:end]), func(longhorn.Checksum) error { return nil }); err == nil {
			t.Fatalf("its blocks can be read though it ends after %d bytes: %s", end, full[:end])
		}
	}
}

// Older writers leave keys out, newer ones have others, and anybody may write anything.
func TestTolerance(t *testing.T) {
	v, err := longhorn.ReadVolume(strings.NewReader(`{"Name":"old","Size":1048576,"Future":{"a":[1,{"Blocks":2}]},"CompressionMethod":"gzip"}`))
	if err != nil || v.SizeBytes != 1<<20 || v.Compression != "gzip" || v.DataEngine != "v1" {
		t.Errorf("%+v, %v", v, err)
	}
	if b, err := longhorn.ReadBackup(strings.NewReader(`{}`), nil); err != nil || b.Finished || b.BlockBytes() != 2<<20 {
		t.Errorf("%+v, %v", b, err)
	}
	for _, bad := range []string{``, `[]`, `null`, `"x"`, `{"Size":"-1"}`, `{"Size":"many"}`, `{"Labels":7}`, `{}{}`, `{"Name":"a"`, `{"Name":` + strings.Repeat(" ", longhorn.MaxConfigBytes) + `"a"}`} {
		if v, err := longhorn.ReadVolume(strings.NewReader(bad)); err == nil {
			t.Errorf("%.20s… is taken for the volume %+v", bad, v)
		}
	}
	if _, err := longhorn.ReadBackup(strings.NewReader(`{"Name":"b","Blocks":[{"Offset":0,"BlockChecksum":"../../x"}]}`), func(longhorn.Checksum) error { return nil }); err == nil {
		t.Error("a block may be called ../../x")
	}
}

func TestClaim(t *testing.T) {
	expect := longhorntest.Expect(t)
	for volume, want := range map[string][2]string{"pvc-3f1c9a52-7d0e-4b6e-9c1b-2a8d5e6f7a01": {"shop", "data"}, "db-data": {"ledger", "db-data"}, "legacy-disk": {}} {
		namespace, claim := longhorn.Claim(expect.InspectVolume[volume].Labels)
		if got := [2]string{namespace, claim}; got != want {
			t.Errorf("volume %s was for %v, want %v", volume, got, want)
		}
	}
}

// What is edited of volume.cfg is edited only.
func TestEdit(t *testing.T) {
	config := contents(t)[longhorn.VolumeKey("db-data")]
	if same, err := (longhorn.VolumeEdit{}).Apply(config); err != nil || !bytes.Equal(same, config) {
		t.Errorf("without a change it becomes\n%s, %v, and was\n%s", same, err, config)
	}
	last, blocks := "", int64(7)
	edited, err := longhorn.VolumeEdit{LastBackup: &last, Blocks: &blocks}.Apply([]byte(`{"Future":[1, 2],"LastBackupName":"b1","A&B":"\u0026"}`))
	if want := `{"Future":[1, 2],"LastBackupName":"","A\u0026B":"\u0026","BlockCount":"7"}`; err != nil || string(edited) != want {
		t.Errorf("%s, %v, want %s", edited, err, want)
	}
}

// What the generator writes is what Longhorn's library does, to the byte.
func TestTheGeneratorWritesAsTheLibraryDoes(t *testing.T) {
	for key, content := range contents(t) {
		var config any
		switch {
		case strings.HasSuffix(key, "/volume.cfg"):
			config = &longhorntest.VolumeConfig{}
		case strings.Contains(key, "/backups/"):
			config = &longhorntest.BackupConfig{}
		default:
			continue
		}
		if err := json.Unmarshal(content, config); err != nil {
			t.Fatal(err)
		}
		if again, err := json.Marshal(config); err != nil || !bytes.Equal(again, content) {
			t.Errorf("%s would be written as\n%s, %v, and is\n%s", key, again, err, content)
		}
	}
}

func FuzzReadVolume(f *testing.F) {
	for key, content := range contents(f) {
		if strings.HasSuffix(key, "volume.cfg") {
			f.Add(content)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := longhorn.ReadVolume(bytes.NewReader(data))
		if err == nil && (v.SizeBytes < 0 || v.Blocks < 0) {
			t.Errorf("%+v", v)
		}
		if _, editErr := (longhorn.VolumeEdit{}).Apply(data); err == nil && editErr != nil {
			t.Errorf("it can be read, but not edited: %v", editErr)
		}
	})
}

func FuzzReadBackup(f *testing.F) {
	for key, content := range contents(f) {
		if strings.Contains(key, "/backups/") || strings.Contains(key, "backing-image.cfg") {
			f.Add(content)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		all, err := longhorn.ReadBackup(bytes.NewReader(data), func(longhorn.Checksum) error { return nil })
		front, frontErr := longhorn.ReadBackup(bytes.NewReader(data), nil)
		if err == nil && frontErr != nil {
			t.Errorf("all can be read, the front not: %v", frontErr)
		}
		if frontErr == nil && (front.SizeBytes < 0 || front.BlockBytes() <= 0) || err == nil && all.SizeBytes < 0 {
			t.Errorf("%+v", front)
		}
		_, _ = longhorn.ReadImage(bytes.NewReader(data), func(longhorn.Checksum) error { return nil })
		_, _ = longhorn.ReadLock(bytes.NewReader(data))
	})
}

func FuzzKeys(f *testing.F) {
	for key := range contents(f) {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		if volume, ok := longhorn.VolumeOf(key); ok && longhorn.VolumePrefix(volume) != key {
			t.Errorf("%q is taken for the volume %q", key, volume)
		}
		if backup, ok := longhorn.BackupOf(key); ok && !strings.HasSuffix(longhorn.BackupKey("v1", backup), "/backup_"+backup+".cfg") {
			t.Errorf("%q is taken for the backup %q", key, backup)
		}
		if lock, ok := longhorn.LockOf(key); ok && !strings.HasSuffix(longhorn.LockKey("v1", lock), "/"+lock+".lck") {
			t.Errorf("%q is taken for the lock %q", key, lock)
		}
		if sum, ok := longhorn.ChecksumOf(key); ok && len(longhorn.BlockKey("", sum)) != 6+64+4 {
			t.Errorf("%q is taken for the block %x", key, sum)
		}
		longhorn.Claim(map[string]string{"KubernetesStatus": key})
	})
}
