// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package refresh

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// whole is a store of which nothing is read in parts.
type whole struct{ *storetest.Faulty }

func (whole) GetRange(context.Context, string, int64, int64) (io.ReadCloser, error) {
	return nil, errors.ErrUnsupported
}

// What Velero has stored by snapshots is listed with what it has uploaded, whatever its version
// says of them, and one list that can't be read costs the others nothing.
func TestSnapshotsOfVelero(t *testing.T) {
	const (
		uploaded = `[{"metadata":{"annotations":{"velero.io/pvc-name":"files"}},"spec":{"pod":{"namespace":"shop","name":"web"},"volume":"files","uploaderType":"kopia"},
			"status":{"phase":"Completed","snapshotID":"k"}}]`
		infos = `[
			{"pvcName":"skipped","pvcNamespace":"shop","pvName":"pv-0","skipped":true,"backupMethod":""},
			{"pvcName":"files","pvcNamespace":"shop","pvName":"pv-1","backupMethod":"PodVolumeBackup","result":"succeeded"},
			{"pvcName":"csi","pvcNamespace":"shop","pvName":"pv-2","backupMethod":"CSISnapshot","snapshotDataMoved":false,"result":"succeeded","startTimestamp":"2026-11-20T10:00:00Z","completionTimestamp":"2026-11-20T10:00:03Z",
				"csiSnapshotInfo":{"snapshotHandle":"snap-2","size":1073741824,"driver":"d","vscName":"content-2"}},
			{"pvcName":"moved","pvcNamespace":"shop","pvName":"pv-3","backupMethod":"CSISnapshot","snapshotDataMoved":true,"result":"succeeded",
				"csiSnapshotInfo":{"vscName":"content-3"},"snapshotDataMovementInfo":{"dataMover":"velero","uploaderType":"kopia","snapshotHandle":"m","size":500,"incrementalSize":20,"Phase":"Completed"}},
			{"pvcName":"vendor","pvcNamespace":"shop","pvName":"pv-7","backupMethod":"CSISnapshot","snapshotDataMoved":true,"result":"succeeded",
				"snapshotDataMovementInfo":{"dataMover":"vendor","uploaderType":"kopia","snapshotHandle":"v","Phase":"Completed"}},
			{"pvcName":"unnamed","pvcNamespace":"shop","pvName":"pv-8","backupMethod":"CSISnapshot","snapshotDataMoved":true,
				"snapshotDataMovementInfo":{"dataMover":"velero","uploaderType":"kopia","operationID":"du-1"}},
			{"pvcName":"cancelled","pvcNamespace":"shop","pvName":"pv-4","backupMethod":"CSISnapshot","snapshotDataMoved":true,"snapshotDataMovementInfo":{"Phase":"Canceled"}},
			{"pvName":"pv-5","backupMethod":"NativeSnapshot","nativeSnapshotInfo":{"snapshotHandle":"snap-5","volumeType":"t","iops":"100"}},
			{"pvcName":"failed","pvcNamespace":"shop","backupMethod":"NativeSnapshot","result":"failed"}]`
		native = `[{"spec":{"persistentVolumeName":"pv-5","providerVolumeID":"v"},"status":{"providerSnapshotID":"snap-5","phase":"Completed"}},
			{"spec":{"persistentVolumeName":"pv-6"},"status":{"phase":"Failed"}}]`
		csi = `[{"metadata":{"namespace":"shop","name":"velero-csi-x"},"spec":{"source":{"persistentVolumeClaimName":"csi"}},
			"status":{"creationTime":"2026-11-20T10:00:00Z","restoreSize":"1Gi","readyToUse":true}},
			{"metadata":{"namespace":"shop","name":"velero-bad-x"},"spec":{"source":{"persistentVolumeClaimName":"bad"}},"status":{"error":{"message":"no space"}}}]`
		files = "shop/files//kopia Completed k/ 0 0"
	)
	for name, test := range map[string]struct {
		infos, native, csi string
		want               []string
		gets               int
		err                string
	}{
		"1.13 and later": {infos: infos, native: native, csi: csi, gets: 4, want: []string{
			files,
			"shop/csi/pv-2/csi-snapshot Completed /content-2 0 1073741824 at 2026-11-20T10:00:03Z",
			"shop/moved/pv-3/csi-snapshot-moved Completed m/content-3 500 0",
			"shop/vendor/pv-7/csi-snapshot-moved Completed / 0 0",
			"shop/unnamed/pv-8/csi-snapshot-moved Completed / 0 0",
			"shop/cancelled/pv-4/csi-snapshot-moved Failed / 0 0",
			"//pv-5/native-snapshot Completed /snap-5 0 0",
			"shop/failed//native-snapshot Failed / 0 0",
		}},
		"before": {native: native, csi: csi, gets: 6, want: []string{
			files,
			"//pv-5/native-snapshot Completed /snap-5 0 0",
			"//pv-6/native-snapshot Failed / 0 0",
			"shop/csi//csi-snapshot Completed /velero-csi-x 0 1073741824 at 2026-11-20T10:00:00Z",
			"shop/bad//csi-snapshot Failed /velero-bad-x 0 0",
		}},
		"none":              {gets: 6, want: []string{files}},
		"null":              {infos: "null", gets: 4, want: []string{files}},
		"damaged":           {infos: "{", gets: 4, want: []string{files}, err: "not with a list"},
		"what can't exist":  {infos: `[{"pvcName":"../x","pvcNamespace":"shop","backupMethod":"CSISnapshot"}]`, gets: 4, want: []string{files}, err: "can't exist"},
		"of nothing at all": {infos: `[{"backupMethod":"CSISnapshot"},null]`, gets: 4, want: []string{files}},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
			from := storetest.NewFaulty(storetest.Memory(t), clocktesting.NewFakeClock(now))
			put := func(key, content string) {
				t.Helper()
				if content == "" {
					return
				}
				var packed bytes.Buffer
				w := gzip.NewWriter(&packed)
				_, _ = w.Write([]byte(content))
				_ = w.Close()
				if err := from.Put(t.Context(), key, packed.Bytes()); err != nil {
					t.Fatal(err)
				}
			}
			metadata := `{"apiVersion":"velero.io/v1","kind":"Backup","metadata":{"name":"v","uid":"of-velero"},"status":{"phase":"Completed"}}`
			if err := from.Put(t.Context(), format.MetadataKey("v"), []byte(metadata)); err != nil {
				t.Fatal(err)
			}
			put(format.PodVolumeBackupsKey("v"), uploaded)
			put(format.VolumeInfoKey("v"), test.infos)
			put(format.VolumeSnapshotsKey("v"), test.native)
			put(format.CSISnapshotsKey("v"), test.csi)
			l := &VeleroLayout{Location: "default", SystemNamespace: "holdfast", Clock: clocktesting.NewFakeClock(now)}
			content, err := l.Read(t.Context(), whole{from}, "v", KnownEntry{Beside: func(types.UID) []string { return nil }})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, v := range content.Volumes {
				text := fmt.Sprintf("%s/%s/%s/%s %s %s/%s %d %d", v.Namespace, v.ClaimName, v.VolumeName, v.Method, v.State, v.SnapshotID, v.SnapshotName, v.SizeBytes, v.VolumeSize)
				if !v.Completion.IsZero() {
					text += " at " + v.Completion.UTC().Format(time.RFC3339)
				}
				got = append(got, text)
				if restored := v.SnapshotID != "" && v.State == v1alpha1.VolumeBackupCompleted; restored != (v.Message == "") {
					t.Errorf("of %s is said %q", text, v.Message)
				}
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("listed are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(test.want, "\n"))
			}
			if (content.VolumesError == "") != (test.err == "") || !strings.Contains(content.VolumesError, test.err) {
				t.Errorf("said is %q", content.VolumesError)
			}
			// Two of them are the metadata, and what would be ours of it.
			if gets := from.Count(storetest.Get); gets != test.gets {
				t.Errorf("%d requests, not %d", gets, test.gets)
			}
		})
	}
}
