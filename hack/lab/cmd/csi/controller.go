// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// controller makes volumes and snapshots.
type controller struct {
	csi.UnimplementedControllerServer
	identity
	storage *storage
	spoiler spoiler
}

func (c *controller) serve(socket string) error {
	c.spoiler.folder = c.storage.folder
	return serve(socket, func(s *grpc.Server) {
		csi.RegisterIdentityServer(s, c)
		csi.RegisterControllerServer(s, c)
		csi.RegisterNodeServer(s, &node{identity: c.identity, storage: c.storage, node: "controller"})
	}, logged("controller"), c.spoiler.intercept)
}

// ControllerGetCapabilities implements csi.ControllerServer.
func (c *controller) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	answer := &csi.ControllerGetCapabilitiesResponse{}
	for _, of := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		// Without it, csi-snapshotter takes each handle for one that exists and is ready.
		csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS,
		csi.ControllerServiceCapability_RPC_CLONE_VOLUME,
	} {
		answer.Capabilities = append(answer.Capabilities, &csi.ControllerServiceCapability{Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: of}}})
	}
	return answer, nil
}

// CreateVolume makes an empty volume, or a copy of a snapshot or a volume.
func (c *controller) CreateVolume(ctx context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if !validID(r.Name) || len(r.VolumeCapabilities) == 0 {
		return nil, status.Errorf(codes.InvalidArgument, "the name is %q, with %d capabilities: a name that a folder may have, and a capability, are needed", r.Name, len(r.VolumeCapabilities))
	}
	a := about{ID: r.Name, Size: r.GetCapacityRange().GetRequiredBytes(), Created: time.Now(), Device: isDevice(r.VolumeCapabilities...)}
	kind, from := "", ""
	switch source := r.GetVolumeContentSource(); {
	case source.GetSnapshot() != nil:
		kind, a.Source = snapshots, source.GetSnapshot().GetSnapshotId()
	case source.GetVolume() != nil:
		kind, a.Source = volumes, source.GetVolume().GetVolumeId()
	}
	if kind != "" {
		of, err := c.storage.load(kind, a.Source)
		if err != nil {
			return nil, err
		}
		if of.Device != a.Device {
			return nil, status.Errorf(codes.InvalidArgument, "the source %s is a device: %t, and a volume that is one: %t was asked for", of.ID, of.Device, a.Device)
		}
		a.Size, from = max(a.Size, of.Size), c.storage.data(kind, a.Source)
	}
	defer c.storage.lock(volumes, a.ID)()
	switch old, err := c.storage.load(volumes, a.ID); {
	case err == nil && (old.Source != a.Source || old.Size != a.Size):
		return nil, status.Errorf(codes.AlreadyExists, "the volume %s has the source %q and %d bytes, and %q and %d bytes were asked for", a.ID, old.Source, old.Size, a.Source, a.Size)
	case err == nil:
	case status.Code(err) != codes.NotFound:
		return nil, err
	default:
		if err := c.storage.make(ctx, volumes, a, from); err != nil {
			return nil, err
		}
	}
	// csi-provisioner deletes a volume whose source is not repeated.
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: a.ID, CapacityBytes: a.Size, ContentSource: r.VolumeContentSource}}, nil
}

// isDevice reports whether a volume with these capabilities is a block device.
func isDevice(capabilities ...*csi.VolumeCapability) bool {
	return slices.ContainsFunc(capabilities, func(of *csi.VolumeCapability) bool { return of.GetBlock() != nil })
}

// DeleteVolume implements csi.ControllerServer.
func (c *controller) DeleteVolume(_ context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if r.VolumeId == "" {
		return nil, status.Error(codes.InvalidArgument, "a volume is needed")
	}
	return &csi.DeleteVolumeResponse{}, c.storage.remove(volumes, r.VolumeId)
}

// ValidateVolumeCapabilities implements csi.ControllerServer.
func (c *controller) ValidateVolumeCapabilities(_ context.Context, r *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if r.VolumeId == "" || len(r.VolumeCapabilities) == 0 {
		return nil, status.Error(codes.InvalidArgument, "a volume and capabilities are needed")
	}
	if _, err := c.storage.load(volumes, r.VolumeId); err != nil {
		return nil, err
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{VolumeCapabilities: r.VolumeCapabilities}}, nil
}

// CreateSnapshot copies a volume.
func (c *controller) CreateSnapshot(ctx context.Context, r *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	if !validID(r.Name) || r.SourceVolumeId == "" {
		return nil, status.Errorf(codes.InvalidArgument, "the name is %q, of the volume %q: a name that a folder may have, and a volume, are needed", r.Name, r.SourceVolumeId)
	}
	defer c.storage.lock(snapshots, r.Name)()
	switch old, err := c.storage.load(snapshots, r.Name); {
	case err == nil && old.Source != r.SourceVolumeId:
		return nil, status.Errorf(codes.AlreadyExists, "the snapshot %s is of the volume %s, and not of %s", r.Name, old.Source, r.SourceVolumeId)
	case err == nil:
		return &csi.CreateSnapshotResponse{Snapshot: c.snapshot(old)}, nil
	case status.Code(err) != codes.NotFound:
		return nil, err
	}
	of, err := c.storage.load(volumes, r.SourceVolumeId)
	if err != nil {
		return nil, err
	}
	a := about{ID: r.Name, Source: of.ID, Size: of.Size, Created: time.Now(), Device: of.Device}
	if err := c.storage.make(ctx, snapshots, a, c.storage.data(volumes, of.ID)); err != nil {
		return nil, err
	}
	return &csi.CreateSnapshotResponse{Snapshot: c.snapshot(a)}, nil
}

func (c *controller) snapshot(a about) *csi.Snapshot {
	return &csi.Snapshot{
		SnapshotId: a.ID, SourceVolumeId: a.Source, SizeBytes: a.Size, CreationTime: timestamppb.New(a.Created),
		ReadyToUse: time.Since(a.Created) >= c.spoiler.faults().readyAfter(),
	}
}

// DeleteSnapshot implements csi.ControllerServer.
func (c *controller) DeleteSnapshot(_ context.Context, r *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	if r.SnapshotId == "" {
		return nil, status.Error(codes.InvalidArgument, "a snapshot is needed")
	}
	return &csi.DeleteSnapshotResponse{}, c.storage.remove(snapshots, r.SnapshotId)
}

// ListSnapshots lists by id. A token is the number of entries before.
func (c *controller) ListSnapshots(_ context.Context, r *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	all, err := c.storage.list(snapshots)
	if err != nil {
		return nil, err
	}
	answer := &csi.ListSnapshotsResponse{}
	for _, a := range all {
		if (r.SnapshotId == "" || r.SnapshotId == a.ID) && (r.SourceVolumeId == "" || r.SourceVolumeId == a.Source) {
			answer.Entries = append(answer.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: c.snapshot(a)})
		}
	}
	begin := 0
	if r.StartingToken != "" {
		if begin, err = strconv.Atoi(r.StartingToken); err != nil || begin < 0 || begin > len(answer.Entries) {
			return nil, status.Errorf(codes.Aborted, "there is no token %q: list again from the start", r.StartingToken)
		}
	}
	end := len(answer.Entries)
	if most := int(r.MaxEntries); most > 0 && begin+most < end {
		end = begin + most
		answer.NextToken = strconv.Itoa(end)
	}
	answer.Entries = answer.Entries[begin:end]
	return answer, nil
}
