// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func newController(t *testing.T) *controller {
	t.Helper()
	folder := t.TempDir()
	made, err := newStorage(folder)
	if err != nil {
		t.Fatal(err)
	}
	c := &controller{storage: made, identity: identity{name: "driver"}}
	c.spoiler.folder = folder
	return c
}

func (c *controller) write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(c.storage.folder, name), []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

var capabilities = []*csi.VolumeCapability{{AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}}}}

func (c *controller) volume(t *testing.T, name, snapshot string) string {
	t.Helper()
	r := &csi.CreateVolumeRequest{Name: name, VolumeCapabilities: capabilities, CapacityRange: &csi.CapacityRange{RequiredBytes: 7}}
	if snapshot != "" {
		r.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: snapshot}}}
	}
	answer, err := c.CreateVolume(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return answer.Volume.VolumeId
}

// TestSnapshotsAreCopies: a snapshot has what was in its volume then, a volume of it has the same, and
// repeated requests make nothing twice. Nothing stays of what was removed.
func TestSnapshotsAreCopies(t *testing.T) {
	c := newController(t)
	source := c.volume(t, "v", "")
	c.write(t, "volumes/v/data/file", "before")
	if err := os.Symlink("file", filepath.Join(c.storage.data(volumes, source), "link")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		answer, err := c.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: source})
		if err != nil || answer.Snapshot.SnapshotId != "s" || answer.Snapshot.SizeBytes != 7 || !answer.Snapshot.ReadyToUse {
			t.Fatalf("the snapshot is %v, %v", answer, err)
		}
		c.write(t, "volumes/v/data/file", "after")
	}
	if id := c.volume(t, "w", "s"); c.volume(t, "w", "s") != id {
		t.Error("the volume was made twice")
	}
	if content, err := os.ReadFile(filepath.Join(c.storage.data(volumes, "w"), "link")); err != nil || string(content) != "before" {
		t.Errorf("the volume of the snapshot has %q, %v", content, err)
	}
	list, err := c.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{SourceVolumeId: source})
	if err != nil || len(list.Entries) != 1 || list.Entries[0].Snapshot.SourceVolumeId != source {
		t.Errorf("listed are %v, %v", list, err)
	}
	if _, err := c.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: "w"}); status.Code(err) != codes.AlreadyExists {
		t.Errorf("a snapshot of another volume under the name: %v", err)
	}
	if _, err := c.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "../x", SourceVolumeId: "w"}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a name that leaves the folder: %v", err)
	}
	for range 2 {
		if _, err := c.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: "s"}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"v", "w"} {
		if _, err := c.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: name}); err != nil {
			t.Fatal(err)
		}
	}
	for _, kind := range []string{volumes, snapshots} {
		if left, err := os.ReadDir(filepath.Join(c.storage.folder, kind)); err != nil || len(left) > 0 {
			t.Errorf("left are %v, %v", left, err)
		}
	}
}

// TestFaults: the file says what goes wrong, also while a request hangs, and the requests are counted.
func TestFaults(t *testing.T) {
	c := newController(t)
	c.volume(t, "v", "")
	snapshot := func(ctx context.Context) (*csi.CreateSnapshotResponse, error) {
		answer, err := c.spoiler.intercept(ctx, &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: "v"}, &grpc.UnaryServerInfo{FullMethod: "/csi.v1.Controller/CreateSnapshot"},
			func(ctx context.Context, r any) (any, error) {
				return c.CreateSnapshot(ctx, r.(*csi.CreateSnapshotRequest))
			})
		if err != nil {
			return nil, err
		}
		return answer.(*csi.CreateSnapshotResponse), nil
	}
	stored := func() int {
		all, err := c.storage.list(snapshots)
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	c.write(t, "faults.json", `{"fail":{"CreateSnapshot":{"code":"UNAVAILABLE","message":"so","times":2}}}`)
	for range 2 {
		if _, err := snapshot(t.Context()); status.Code(err) != codes.Unavailable || stored() != 0 {
			t.Errorf("a failure: %v, %d stored", err, stored())
		}
	}
	c.write(t, "faults.json", `{"readyAfter":"1h","fail":{"CreateSnapshot":{"code":"DEADLINE_EXCEEDED","times":1,"after":true}}}`)
	if _, err := snapshot(t.Context()); status.Code(err) != codes.DeadlineExceeded || stored() != 1 {
		t.Errorf("a lost answer: %v, %d stored", err, stored())
	}
	if answer, err := snapshot(t.Context()); err != nil || answer.Snapshot.ReadyToUse {
		t.Errorf("a slow snapshot: %v, %v", answer, err)
	}
	c.write(t, "faults.json", `{"hang":["CreateSnapshot"]}`)
	ctx, cancel := context.WithTimeout(t.Context(), 2*hangLook)
	defer cancel()
	if _, err := snapshot(ctx); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a request that hangs: %v", err)
	}
	written := make(chan error)
	go func() { written <- os.WriteFile(filepath.Join(c.storage.folder, "faults.json"), nil, 0o644) }()
	if answer, err := snapshot(t.Context()); err != nil || !answer.Snapshot.ReadyToUse {
		t.Errorf("when it hangs no more: %v, %v", answer, err)
	}
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	c.write(t, "faults.json", `{"perSecond":1}`)
	at := time.Unix(1, 0)
	if !c.spoiler.hasRoom("m", 1, at) || c.spoiler.hasRoom("m", 1, at.Add(time.Millisecond)) || !c.spoiler.hasRoom("m", 1, at.Add(time.Second)) {
		t.Error("the bound of a second is another one")
	}
	var counted calls
	content, err := os.ReadFile(filepath.Join(c.storage.folder, "calls.json"))
	if err == nil {
		err = json.Unmarshal(content, &counted)
	}
	if err != nil || counted.Calls["CreateSnapshot"] != 6 || counted.Failed["CreateSnapshot"] != 4 {
		t.Errorf("counted are %+v, %v", counted, err)
	}
}
