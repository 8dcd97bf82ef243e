// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package format

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
)

func compress(t testing.TB, plain string) []byte {
	t.Helper()
	var compressed bytes.Buffer
	w := gzip.NewWriter(&compressed)
	if _, err := w.Write([]byte(plain)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return compressed.Bytes()
}

func decompress(t testing.TB, compressed []byte) []byte {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(compressed))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return plain
}

var results = Results{
	Errors: Messages{
		Cluster:    []string{"storageclasses.storage.k8s.io: forbidden"},
		Namespaces: map[string][]string{"shop": {"pod web-0, volume data: the agent restarted", "b"}, "ops": {"c"}},
	},
	Warnings: Messages{Velero: []string{"metrics.k8s.io is not served"}},
}

var resourceList = ResourceList{
	"v1/Pod":             {"shop/web-1", "shop/web-0"},
	"v1/Namespace":       {"shop"},
	"apps/v1/Deployment": {"shop/web"},
}

func volumes() []Volume {
	claim := Volume{
		Pod:              enginev1alpha1.PodReference{Namespace: "shop", Name: "web-0", UID: "pod-uid"},
		NamespaceUID:     "shop-uid",
		Node:             "node-1",
		Name:             "data",
		ClaimName:        "data-web-0",
		ClaimUID:         "claim-uid",
		ClaimLabels:      map[string]string{"app": "db"},
		PersistentVolume: "pvc-1234",
		ReclaimPolicy:    corev1.PersistentVolumeReclaimDelete,
		Labels:           map[string]string{"zone": "a"},
		Capacity:         8192,
		Created:          *at("09:00:00"),
		Status: enginev1alpha1.VolumeUploadStatus{
			Phase:               enginev1alpha1.VolumePhaseCompleted,
			SnapshotID:          "0123456789abcdef0123456789abcdef",
			Path:                "/host_pods/pod-uid/volumes/kubernetes.io~csi/pvc-1234/mount",
			Progress:            enginev1alpha1.VolumeProgress{TotalBytes: 4096, BytesDone: 4096},
			IncrementalBytes:    1024,
			StartTimestamp:      at("10:00:10"),
			CompletionTimestamp: at("10:00:20"),
		},
	}
	scratch := Volume{
		Pod:  enginev1alpha1.PodReference{Namespace: "shop", Name: "web-0", UID: "pod-uid"},
		Node: "node-1",
		Name: "scratch",
		Status: enginev1alpha1.VolumeUploadStatus{
			Phase:          enginev1alpha1.VolumePhaseFailed,
			Message:        "the agent restarted",
			StartTimestamp: at("10:00:10"),
		},
	}
	return []Volume{claim, scratch}
}

func podVolumeBackups() []PodVolumeBackup {
	var list []PodVolumeBackup
	for _, volume := range volumes() {
		list = append(list, NewPodVolumeBackup(endedBackup(), "shop.daily", volume))
	}
	return list
}

func volumeInfos() []VolumeInfo {
	var list []VolumeInfo
	for _, volume := range volumes() {
		list = append(list, NewVolumeInfo(volume))
	}
	return list
}

// write gives what a writer writes, and makes sure that it does so each time.
func write(t *testing.T, writer func(io.Writer) error) []byte {
	t.Helper()
	var first, second bytes.Buffer
	for _, w := range []io.Writer{&first, &second} {
		if err := writer(w); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("equal values gave different bytes")
	}
	return first.Bytes()
}

// sideFiles are those of testdata, by their names.
var sideFiles = map[string]func(io.Writer) error{
	"results.json":          func(w io.Writer) error { return WriteResults(w, results) },
	"results-none.json":     func(w io.Writer) error { return WriteResults(w, Results{}) },
	"resource-list.json":    func(w io.Writer) error { return WriteResourceList(w, resourceList) },
	"podvolumebackups.json": func(w io.Writer) error { return WritePodVolumeBackups(w, podVolumeBackups()) },
	"volumeinfo.json":       func(w io.Writer) error { return WriteVolumeInfo(w, volumeInfos()) },
	"empty-list.json":       WriteEmptyList,
}

func TestSideFilesGolden(t *testing.T) {
	for name, writer := range sideFiles {
		golden(t, name, indented(t, decompress(t, write(t, writer))))
	}
}

// sink takes that many writes.
type sink struct{ left int }

var errSink = errors.New("it is full")

func (s *sink) Write(p []byte) (int, error) {
	if s.left--; s.left < 0 {
		return 0, errSink
	}
	return len(p), nil
}

func TestWritersSayWhatFails(t *testing.T) {
	for name, writer := range sideFiles {
		for writes := range 2 { // the first is that of the header of gzip
			if err := writer(&sink{writes}); !errors.Is(err, errSink) {
				t.Errorf("%s, after %d writes: %v", name, writes, err)
			}
		}
	}
}

func TestSideFilesRoundTrip(t *testing.T) {
	gotResults, err := ReadResults(bytes.NewReader(write(t, func(w io.Writer) error { return WriteResults(w, results) })))
	if diff := cmp.Diff(results, gotResults); diff != "" || err != nil {
		t.Errorf("results: %v\n%s", err, diff)
	}
	list, err := ReadResourceList(bytes.NewReader(write(t, func(w io.Writer) error { return WriteResourceList(w, resourceList) })))
	if err != nil || len(list) != 3 || list["v1/Pod"][0] != "shop/web-0" {
		t.Errorf("resource list: %v, %v", list, err)
	}
	infos, err := ReadVolumeInfo(bytes.NewReader(write(t, func(w io.Writer) error { return WriteVolumeInfo(w, volumeInfos()) })))
	if diff := cmp.Diff(volumeInfos(), infos); diff != "" || err != nil {
		t.Errorf("volume info: %v\n%s", err, diff)
	}
	pvbs, err := readPodVolumeBackups(bytes.NewReader(write(t, func(w io.Writer) error { return WritePodVolumeBackups(w, podVolumeBackups()) })))
	if diff := cmp.Diff(podVolumeBackups(), pvbs); diff != "" || err != nil {
		t.Errorf("pod volume backups: %v\n%s", err, diff)
	}
	if pvbs[0].ClaimName() != "data-web-0" || pvbs[1].ClaimName() != "" {
		t.Errorf("claims %q and %q", pvbs[0].ClaimName(), pvbs[1].ClaimName())
	}
}

func readPodVolumeBackups(r io.Reader) ([]PodVolumeBackup, error) {
	var list []PodVolumeBackup
	err := ReadPodVolumeBackups(r, func(p PodVolumeBackup) error {
		list = append(list, p)
		return nil
	})
	return list, err
}

func TestMessagesCount(t *testing.T) {
	if got := results.Errors.Count(); got != 4 {
		t.Errorf("got %d errors", got)
	}
	if got := results.Warnings.Count(); got != 1 {
		t.Errorf("got %d warnings", got)
	}
}

// readers are all of them, for what each must bear or refuse.
var readers = map[string]func(io.Reader) (int, error){
	"results": func(r io.Reader) (int, error) {
		results, err := ReadResults(r)
		return results.Errors.Count() + results.Warnings.Count(), err
	},
	"resource list":    func(r io.Reader) (int, error) { list, err := ReadResourceList(r); return len(list), err },
	"volume info":      func(r io.Reader) (int, error) { list, err := ReadVolumeInfo(r); return len(list), err },
	"volume infos":     func(r io.Reader) (int, error) { return counted(r, ReadVolumeInfos) },
	"native snapshots": func(r io.Reader) (int, error) { return counted(r, ReadNativeSnapshots) },
	"CSI snapshots":    func(r io.Reader) (int, error) { return counted(r, ReadCSISnapshots) },
	"pod volume backups": func(r io.Reader) (int, error) {
		list, err := readPodVolumeBackups(r)
		return len(list), err
	},
}

// counted reads a list one by one.
func counted[T any](r io.Reader, read func(io.Reader, func(T) error) error) (count int, err error) {
	err = read(r, func(T) error { count++; return nil })
	return count, err
}

func TestReadersBearNull(t *testing.T) {
	for name, read := range readers {
		for _, content := range []string{"null", "null\n", " null "} {
			if count, err := read(bytes.NewReader(compress(t, content))); err != nil || count != 0 {
				t.Errorf("%s, %q: %d, %v", name, content, count, err)
			}
		}
	}
}

func TestReadersBearUnknownFields(t *testing.T) {
	list, err := readPodVolumeBackups(bytes.NewReader(compress(t, `[{"metadata":{"name":"a"},"spec":{"new":{"a":[1]}}},null]`)))
	if err != nil || len(list) != 2 || list[0].Name != "a" {
		t.Errorf("%+v, %v", list, err)
	}
}

func TestReadersRefuse(t *testing.T) {
	whole := write(t, func(w io.Writer) error { return WritePodVolumeBackups(w, podVolumeBackups()) })
	for name, content := range map[string][]byte{
		"nothing":           nil,
		"not gzip":          []byte("[]"),
		"empty gzip":        compress(t, ""),
		"not JSON":          compress(t, "x"),
		"a number":          compress(t, "1"),
		"two values":        compress(t, "[][]"),
		"unclosed":          compress(t, `[{"a":1}`),
		"cut in the middle": whole[:len(whole)/2],
		"cut checksum":      whole[:len(whole)-4],
		"wrong checksum":    append(bytes.Clone(whole[:len(whole)-8]), 1, 2, 3, 4, 5, 6, 7, 8),
	} {
		for reader, read := range readers {
			if _, err := read(bytes.NewReader(content)); err == nil {
				t.Errorf("%s: %s was read", reader, name)
			}
		}
	}
	for _, list := range []string{"volume info", "pod volume backups"} {
		if _, err := readers[list](bytes.NewReader(compress(t, "{}"))); err == nil {
			t.Errorf("%s: an object was read", list)
		}
	}
}

func TestReadersAreBounded(t *testing.T) {
	bomb := &endless{piece: []byte(`{"metadata":{"name":"` + strings.Repeat("x", 1<<10) + `"}},`), left: MaxVolumesBytes + 1<<20}
	pipe, feed := io.Pipe()
	go func() {
		w := gzip.NewWriter(feed)
		_, err := io.Copy(w, io.MultiReader(strings.NewReader("["), bomb))
		_ = feed.CloseWithError(errors.Join(err, w.Close()))
	}()
	seen := 0
	err := ReadPodVolumeBackups(pipe, func(PodVolumeBackup) error { seen++; return nil })
	_ = pipe.Close()
	if !errors.Is(err, ErrTooLarge) || seen == 0 || seen > MaxVolumesBytes>>10 {
		t.Errorf("after %d elements: %v", seen, err)
	}
}

// TestNothingIsWrittenThatIsNotRead: a file beyond a reader's limit is none.
func TestNothingIsWrittenThatIsNotRead(t *testing.T) {
	const text = "some text"
	size := int64(len(text) + len("\"\"\n"))
	for limit := size - 1; limit <= size+1; limit++ {
		var whole, bounded bytes.Buffer
		if err := writeJSON(&whole, 1<<20, text); err != nil {
			t.Fatal(err)
		}
		read := readCompressed(&whole, limit, func(decoder *json.Decoder) error { return decoder.Decode(new(string)) })
		if written := writeJSON(&bounded, limit, text); errors.Is(written, ErrTooLarge) != errors.Is(read, ErrTooLarge) {
			t.Errorf("%d bytes with the limit %d: written with %v, read with %v", size, limit, written, read)
		}
	}
	volumes := make([]PodVolumeBackup, 65)
	for i := range volumes {
		volumes[i].Status.Message = strings.Repeat("x", MaxVolumesBytes/64)
	}
	if err := WritePodVolumeBackups(io.Discard, volumes); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a list of volumes that nobody reads: %v", err)
	}
	if err := WriteVolumeInfo(io.Discard, make([]VolumeInfo, 1000)); err != nil {
		t.Error(err)
	}
}

// endless repeats a piece.
type endless struct {
	piece []byte
	at    int
	left  int
}

func (e *endless) Read(p []byte) (int, error) {
	if e.left <= 0 {
		return 0, io.EOF
	}
	n := copy(p, e.piece[e.at:])
	e.at = (e.at + n) % len(e.piece)
	e.left -= n
	return n, nil
}

func TestReadPodVolumeBackupsStops(t *testing.T) {
	stop := errors.New("enough")
	content := compress(t, "[{},{},{}]")
	seen := 0
	err := ReadPodVolumeBackups(bytes.NewReader(content), func(PodVolumeBackup) error { seen++; return stop })
	if !errors.Is(err, stop) || seen != 1 {
		t.Errorf("after %d: %v", seen, err)
	}
}

func TestLabelValue(t *testing.T) {
	for name, want := range map[string]string{
		"short":                 "short",
		strings.Repeat("a", 63): strings.Repeat("a", 63),
		// sha256 of 64 times "a" begins with ffe054.
		strings.Repeat("a", 64): strings.Repeat("a", 57) + "ffe054",
	} {
		if got := labelValue(name); got != want {
			t.Errorf("%s: got %s", name, got)
		}
	}
}

func TestPodVolumeBackupNamesDiffer(t *testing.T) {
	seen := map[string]bool{}
	for _, pod := range []string{"web-0", "web-1"} {
		for _, volume := range []string{"data", "logs"} {
			pvb := NewPodVolumeBackup(endedBackup(), "shop.daily", Volume{Pod: enginev1alpha1.PodReference{Namespace: "shop", Name: pod}, Name: volume})
			if seen[pvb.Name] || !strings.HasPrefix(pvb.Name, "shop.daily-") {
				t.Errorf("name %s", pvb.Name)
			}
			seen[pvb.Name] = true
		}
	}
	for _, claim := range []string{"one", "two"} { // which no pod uses
		pvb := NewPodVolumeBackup(endedBackup(), "shop.daily", Volume{Pod: enginev1alpha1.PodReference{Namespace: "shop"}, ClaimName: claim})
		if seen[pvb.Name] || pvb.VolumeName() != claim {
			t.Errorf("name %s of %s", pvb.Name, pvb.VolumeName())
		}
		seen[pvb.Name] = true
	}
}

// TestSnapshotDriver: a volume that was read from a snapshot says so.
func TestSnapshotDriver(t *testing.T) {
	volume := volumes()[0]
	live := NewPodVolumeBackup(endedBackup(), "shop.daily", volume)
	volume.Snapshot = &SnapshotSource{Driver: "ebs"}
	cut := NewPodVolumeBackup(endedBackup(), "shop.daily", volume)
	if live.SnapshotDriver() != "" || cut.SnapshotDriver() != "ebs" {
		t.Errorf("the drivers are %q and %q", live.SnapshotDriver(), cut.SnapshotDriver())
	}
}

// TestSnapshotInStorage: a volume whose snapshot is kept names it, and no upload. One that failed does not.
func TestSnapshotInStorage(t *testing.T) {
	volume := volumes()[0]
	volume.Snapshot = &SnapshotSource{Driver: "ebs", Kept: true, Cut: &SnapshotCut{Handle: "snap-1", Content: "snapcontent-1", Size: 7}}
	volume.Status = enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted}
	kept, info := NewPodVolumeBackup(endedBackup(), "shop.daily", volume), NewVolumeInfo(volume)
	want := CSISnapshotInfo{SnapshotHandle: "snap-1", VSCName: "snapcontent-1", Size: 7, Driver: "ebs", ReadyToUse: new(true)}
	if kept.SnapshotHandle() != "snap-1" || kept.Status.SnapshotID != "" || info.BackupMethod != MethodCSISnapshot || info.PVBInfo != nil || !info.PreserveLocalSnapshot || !reflect.DeepEqual(info.CSISnapshotInfo, &want) {
		t.Errorf("kept is %+v with %+v", kept, info)
	}
	volume.Status.Phase = enginev1alpha1.VolumePhaseFailed
	failed, info := NewPodVolumeBackup(endedBackup(), "shop.daily", volume), NewVolumeInfo(volume)
	if failed.SnapshotHandle() != "" || info.BackupMethod == MethodCSISnapshot || info.Result != ResultFailed {
		t.Errorf("failed is %+v with %+v", failed, info)
	}
}

// TestSnapshotBesideMovedData: a volume whose snapshot stays beside its moved data names both. All else is as if it
// were moved alone.
func TestSnapshotBesideMovedData(t *testing.T) {
	volume := volumes()[0]
	volume.Status = enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted, SnapshotID: "k1"}
	volume.Snapshot = &SnapshotSource{Driver: "ebs", Cut: &SnapshotCut{Handle: "snap-1"}}
	moved, infoOfMoved := NewPodVolumeBackup(endedBackup(), "shop.daily", volume), NewVolumeInfo(volume)
	volume.Snapshot.KeepLocal = 3
	both, info := NewPodVolumeBackup(endedBackup(), "shop.daily", volume), NewVolumeInfo(volume)
	if moved.SnapshotHandle() != "" || both.SnapshotHandle() != "snap-1" || both.Status.SnapshotID != "k1" || volume.InStorage() {
		t.Errorf("they are %+v and %+v", moved, both)
	}
	if !reflect.DeepEqual(info, infoOfMoved) {
		t.Errorf("the info is %+v, want %+v", info, infoOfMoved)
	}
	volume.Status.Phase, volume.Status.SnapshotID = enginev1alpha1.VolumePhaseFailed, ""
	if failed := NewPodVolumeBackup(endedBackup(), "shop.daily", volume); failed.SnapshotHandle() != "" {
		t.Errorf("failed is %+v", failed)
	}
}

// What is known of a volume itself comes back, but for labels that are too many for their place.
func TestVolumeItself(t *testing.T) {
	volume := volumes()[0]
	want := VolumeItself{Name: "pvc-1234", SizeBytes: 8192, Created: at("09:00:00"), Labels: map[string]string{"app": "db"}}
	read := func() VolumeItself {
		pvb := NewPodVolumeBackup(endedBackup(), "shop.daily", volume)
		return DecodeVolumeItself(pvb.Itself())
	}
	if diff := cmp.Diff(want, read()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	volume.ClaimLabels = map[string]string{}
	for i := range 300 {
		volume.ClaimLabels[fmt.Sprintf("label-%d", i)] = strings.Repeat("x", 63)
	}
	want.Labels = nil // and nobody reads them
	labels, err := json.Marshal(VolumeItself{Name: "pvc-1234", Labels: volume.ClaimLabels})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(VolumeItself{}, DecodeVolumeItself(string(labels))); diff != "" {
		t.Errorf("with too many labels, -want +got:\n%s", diff)
	}
	if diff := cmp.Diff(want, read()); diff != "" {
		t.Errorf("with many labels, -want +got:\n%s", diff)
	}
}

func TestVolumeNames(t *testing.T) {
	for want, got := range map[string]string{"data": VolumeName("data", "web-0", "v"), "pod:web-0:v": VolumeName("", "web-0", "v")} {
		if got != want {
			t.Errorf("%s, not %s", got, want)
		}
	}
}

// What Velero's lists say was not backed up.
func TestSnapshotsThatFailed(t *testing.T) {
	for name, c := range map[string]struct {
		info VolumeInfo
		want bool
	}{
		"nothing is said":     {VolumeInfo{}, false},
		"succeeded":           {VolumeInfo{Result: "succeeded"}, false},
		"failed":              {VolumeInfo{Result: ResultFailed}, true},
		"moved":               {VolumeInfo{SnapshotDataMoved: true, DataMovementInfo: &DataMovementInfo{Phase: phaseCompleted}}, false},
		"moved, and no phase": {VolumeInfo{SnapshotDataMoved: true, DataMovementInfo: &DataMovementInfo{}}, false},
		"moved, and no more":  {VolumeInfo{SnapshotDataMoved: true}, false},
		"not moved":           {VolumeInfo{SnapshotDataMoved: true, DataMovementInfo: &DataMovementInfo{Phase: "Cancelled"}}, true},
		"not to be moved":     {VolumeInfo{DataMovementInfo: &DataMovementInfo{Phase: "Cancelled"}}, false},
		"native":              {VolumeInfo{NativeSnapshotInfo: &NativeSnapshotInfo{Phase: phaseCompleted}}, false},
		"native, failed":      {VolumeInfo{NativeSnapshotInfo: &NativeSnapshotInfo{Phase: phaseFailed}}, true},
	} {
		if got := c.info.Failed(); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	var native NativeSnapshot
	if native.Failed() {
		t.Error("a snapshot without a phase has failed")
	}
	if native.Status.Phase = phaseFailed; !native.Failed() {
		t.Error("a snapshot that has failed has not")
	}
}

// TestStored: why a volume that Velero stored by a snapshot can't be restored, for each kind of mover.
func TestStored(t *testing.T) {
	moved := func(of DataMovementInfo) VolumeInfo {
		return VolumeInfo{BackupMethod: MethodCSISnapshot, SnapshotDataMoved: true, DataMovementInfo: &of}
	}
	for name, c := range map[string]struct {
		info VolumeInfo
		want string
	}{
		"moved":                  {moved(DataMovementInfo{DataMover: "velero", UploaderType: UploaderKopia, SnapshotHandle: "k", Phase: phaseCompleted}), ""},
		"by an unnamed mover":    {moved(DataMovementInfo{UploaderType: UploaderKopia, SnapshotHandle: "k"}), ""},
		"by the mover of files":  {moved(DataMovementInfo{DataMover: "velero-fs", UploaderType: UploaderKopia, SnapshotHandle: "k"}), ""},
		"by the mover of blocks": {moved(DataMovementInfo{DataMover: "velero-block", UploaderType: "velero-block", SnapshotHandle: "k"}), StoredAsBlocks},
		"by another mover":       {moved(DataMovementInfo{DataMover: "other", UploaderType: UploaderKopia, SnapshotHandle: "k"}), `data mover "other"`},
		"by another uploader":    {moved(DataMovementInfo{UploaderType: "other", SnapshotHandle: "k"}), `with "other"`},
		"of 1.13":                {moved(DataMovementInfo{DataMover: "velero", UploaderType: UploaderKopia}), StoredUnnamed},
		"and no more is said":    {VolumeInfo{BackupMethod: MethodCSISnapshot, SnapshotDataMoved: true}, StoredUnnamed},
		"not completed":          {moved(DataMovementInfo{UploaderType: UploaderKopia, SnapshotHandle: "k", Phase: "Canceled"}), StoredFailed},
		"not moved":              {VolumeInfo{BackupMethod: MethodCSISnapshot, CSISnapshotInfo: &CSISnapshotInfo{SnapshotHandle: "s"}}, StoredInStorage},
		"by a cloud's API":       {VolumeInfo{BackupMethod: MethodNativeSnapshot}, StoredNative},
	} {
		if got := c.info.Stored(); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, not %q", name, got, c.want)
		}
	}
}

func FuzzReaders(f *testing.F) {
	for _, name := range []string{"results.json", "resource-list.json", "podvolumebackups.json", "volumeinfo.json", "empty-list.json"} {
		plain, err := os.ReadFile("testdata/" + name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(compress(f, string(plain)), true)
		f.Add(plain, false)
	}
	random := make([]byte, 100)
	_, _ = rand.NewChaCha8([32]byte{}).Read(random)
	f.Add(random, true)
	f.Fuzz(func(t *testing.T, data []byte, compressed bool) {
		if !compressed {
			data = compress(t, string(data))
		}
		for _, read := range readers {
			_, _ = read(bytes.NewReader(data)) // must not panic nor hang
		}
	})
}
