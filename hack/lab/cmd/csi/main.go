// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Command csi is a driver of the Container Storage Interface for a lab.
//
// Each argument is the folder of a kubelet, at which the driver registers itself. It mounts a
// folder of this machine where a pod wants it: the folder whose path is the volume's handle, for
// PersistentVolumes that are made by hand, or a volume of its own.
//
// With a socket it also makes volumes and snapshots, which are copies of volumes, for
// csi-provisioner and csi-snapshotter. Tests make it fail meanwhile: see faults.
package main

import (
	"context"
	"errors"
	"flag"
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
	"google.golang.org/protobuf/types/known/wrapperspb"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

func main() {
	data := flag.String("data", "", "folder of the volumes and snapshots that the driver makes")
	socket := flag.String("socket", "", "socket for those who ask it to make some")
	flag.Parse()
	if flag.NArg() == 0 || *socket == "" && flag.NArg() < 2 || *socket != "" && *data == "" {
		log.Fatal("usage: csi [--data DIR [--socket PATH]] NAME KUBELET_DIR...")
	}
	made, err := newStorage(*data)
	if err != nil {
		log.Fatal(err)
	}
	failed := make(chan error)
	if *socket != "" {
		c := &controller{storage: made, identity: identity{name: flag.Arg(0)}}
		go func() { failed <- c.serve(*socket) }()
	}
	for _, kubelet := range flag.Args()[1:] {
		// A kubelet knows a node by the folder that it is in, see nodes/ of a lab.
		d := &node{identity: identity{name: flag.Arg(0)}, storage: made, node: filepath.Base(filepath.Dir(kubelet))}
		// kubelet finds the socket, and calls the driver on the same one.
		go func() { failed <- d.serve(filepath.Join(kubelet, "plugins_registry", "csi.sock")) }()
	}
	log.Fatal(<-failed)
}

// serve serves on a socket.
func serve(socket string, register func(*grpc.Server), interceptors ...grpc.UnaryServerInterceptor) error {
	// One that was killed leaves its socket.
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(interceptors...))
	register(server)
	return server.Serve(listener)
}

// logged logs each request with its answer.
func logged(who string) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		answer, err := handler(ctx, request)
		log.Printf("%s: %s {%v}: %v", who, info.FullMethod, request, err)
		return answer, err
	}
}

// identity says who the driver is.
type identity struct {
	csi.UnimplementedIdentityServer
	name string
}

// GetPluginInfo implements csi.IdentityServer.
func (i identity) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: i.name, VendorVersion: "lab"}, nil
}

// GetPluginCapabilities implements csi.IdentityServer.
func (i identity) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{{Type: &csi.PluginCapability_Service_{
		Service: &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE},
	}}}}, nil
}

// Probe implements csi.IdentityServer.
func (i identity) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

// node serves one kubelet.
type node struct {
	registration.UnimplementedRegistrationServer
	csi.UnimplementedNodeServer
	identity
	storage *storage
	node    string
}

func (d *node) serve(socket string) error {
	return serve(socket, func(s *grpc.Server) {
		registration.RegisterRegistrationServer(s, d)
		csi.RegisterIdentityServer(s, d)
		csi.RegisterNodeServer(s, d)
	}, logged(d.node))
}

// GetInfo is what kubelet asks on finding the socket.
func (d *node) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: d.name, SupportedVersions: []string{"1.0.0"}}, nil
}

// NotifyRegistrationStatus is logged with its request.
func (d *node) NotifyRegistrationStatus(context.Context, *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	return &registration.RegistrationStatusResponse{}, nil
}

// NodeGetInfo implements csi.NodeServer.
func (d *node) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: d.node}, nil
}

// NodeGetCapabilities says that there are none: a volume is published, and not staged before.
func (d *node) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{}, nil
}

// NodePublishVolume mounts a volume for a pod, unless it is mounted there.
func (d *node) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	switch {
	case r.VolumeId == "" || r.TargetPath == "" || r.VolumeCapability == nil:
		return nil, status.Error(codes.InvalidArgument, "a volume, a path and a capability are needed")
	case isDevice(r.VolumeCapability):
		return &csi.NodePublishVolumeResponse{}, d.storage.attach(r.VolumeId, r.TargetPath)
	}
	path := r.VolumeId
	if !filepath.IsAbs(path) {
		if _, err := d.storage.load(volumes, r.VolumeId); err != nil {
			return nil, err
		}
		path = d.storage.data(volumes, r.VolumeId)
	}
	folder, err := os.Stat(path)
	if err != nil || !folder.IsDir() {
		return nil, status.Errorf(codes.NotFound, "%q is not the path of a folder: %v", path, err)
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
	if err := unix.Mount(path, r.TargetPath, "", unix.MS_BIND, ""); err != nil {
		return nil, fmt.Errorf("mount %s on %s: %w", path, r.TargetPath, err)
	}
	// A claim that is ReadOnlyMany asks by its mode alone.
	if mode := r.VolumeCapability.GetAccessMode().GetMode(); r.Readonly || mode == csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY || mode == csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY {
		if err := unix.Mount("", r.TargetPath, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			return nil, errors.Join(fmt.Errorf("make %s read-only: %w", r.TargetPath, err), unix.Unmount(r.TargetPath, unix.UMOUNT_NOFOLLOW))
		}
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

// NodeUnpublishVolume takes a volume from a pod, unless it has none.
func (d *node) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if r.VolumeId == "" || r.TargetPath == "" {
		return nil, status.Error(codes.InvalidArgument, "a volume and a path are needed")
	}
	if err := d.storage.detach(r.TargetPath); err != nil {
		return nil, err
	}
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
