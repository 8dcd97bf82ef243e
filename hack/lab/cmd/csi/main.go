// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Command csi is a driver of the Container Storage Interface for a lab. A volume is a
// folder of this machine, whose path is the volume's handle: the driver mounts it where a
// pod wants it. It provisions nothing, so PersistentVolumes are made by hand. Each
// argument is the folder of a kubelet, at which the driver registers itself.
package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"net"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

func main() {
	if len(os.Args) < 3 {
		log.Fatal("usage: csi NAME KUBELET_DIR...")
	}
	failed := make(chan error)
	for _, kubelet := range os.Args[2:] {
		// A kubelet knows a node by the folder that it is in, see nodes/ of a lab.
		d := &driver{name: os.Args[1], node: filepath.Base(filepath.Dir(kubelet))}
		// kubelet finds the socket, and calls the driver on the same one.
		go func() { failed <- d.serve(filepath.Join(kubelet, "plugins_registry", "csi.sock")) }()
	}
	log.Fatal(<-failed)
}

// driver serves one kubelet.
type driver struct {
	registration.UnimplementedRegistrationServer
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer
	name, node string
}

func (d *driver) serve(socket string) error {
	// One that was killed leaves its socket.
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		answer, err := handler(ctx, request)
		log.Printf("%s: %s {%v}: %v", d.node, info.FullMethod, request, err)
		return answer, err
	}))
	registration.RegisterRegistrationServer(server, d)
	csi.RegisterIdentityServer(server, d)
	csi.RegisterNodeServer(server, d)
	return server.Serve(listener)
}

// GetInfo is what kubelet asks on finding the socket.
func (d *driver) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: d.name, SupportedVersions: []string{"1.0.0"}}, nil
}

// NotifyRegistrationStatus is logged with its request.
func (d *driver) NotifyRegistrationStatus(context.Context, *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	return &registration.RegistrationStatusResponse{}, nil
}

// GetPluginInfo implements csi.IdentityServer.
func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: d.name, VendorVersion: "lab"}, nil
}

// NodeGetInfo implements csi.NodeServer.
func (d *driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: d.node}, nil
}

// NodeGetCapabilities says that there are none: a volume is published, and not staged before.
func (d *driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{}, nil
}

// NodePublishVolume mounts a volume for a pod, unless it is mounted there.
func (d *driver) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	if r.Readonly || r.VolumeCapability.GetBlock() != nil {
		return nil, status.Error(codes.InvalidArgument, "volumes are folders that can be written to")
	}
	folder, err := os.Stat(r.VolumeId)
	if err != nil || !folder.IsDir() || !filepath.IsAbs(r.VolumeId) {
		return nil, status.Errorf(codes.NotFound, "%q is not the path of a folder: %v", r.VolumeId, err)
	}
	// kubelet makes the folder in which this one is.
	if err := os.Mkdir(r.TargetPath, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	target, err := os.Stat(r.TargetPath)
	if err != nil {
		return nil, err
	}
	if os.SameFile(folder, target) {
		return &csi.NodePublishVolumeResponse{}, nil
	}
	if err := unix.Mount(r.VolumeId, r.TargetPath, "", unix.MS_BIND, ""); err != nil {
		return nil, fmt.Errorf("mount %s on %s: %w", r.VolumeId, r.TargetPath, err)
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

// NodeUnpublishVolume takes a volume from a pod, unless it has none.
func (d *driver) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	// EINVAL: nothing is mounted there.
	if err := unix.Unmount(r.TargetPath, unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("unmount %s: %w", r.TargetPath, err)
	}
	// Only when it is empty: what is in there could be the volume.
	if err := os.Remove(r.TargetPath); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}
