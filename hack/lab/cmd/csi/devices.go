// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// attach makes a loop device of a volume's file, and binds it to a path, unless one is there.
func (s *storage) attach(id, path string) error {
	a, err := s.load(volumes, id)
	switch {
	case err != nil:
		return err
	case !a.Device:
		return status.Errorf(codes.InvalidArgument, "the volume %s is a folder", id)
	case loopOf(path) != "":
		return nil
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return err
	}
	device, err := losetup("--find", "--show", s.data(volumes, id))
	if err != nil {
		return err
	}
	if err := unix.Mount(device, path, "", unix.MS_BIND, ""); err != nil {
		_, failed := losetup("--detach", device)
		return errors.Join(fmt.Errorf("mount %s on %s: %w", device, path, err), failed)
	}
	return nil
}

// detach ends the loop device at a path, if there is one. The path stays mounted.
func (s *storage) detach(path string) error {
	device := loopOf(path)
	if device == "" {
		return nil
	}
	_, err := losetup("--detach", device)
	return err
}

// loopOf returns the loop device that is bound to a path, or "".
func loopOf(path string) string {
	var stat unix.Stat_t
	if unix.Stat(path, &stat) != nil || stat.Mode&unix.S_IFMT != unix.S_IFBLK {
		return ""
	}
	device := fmt.Sprintf("/dev/loop%d", unix.Minor(stat.Rdev))
	if _, err := os.Stat(device); errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	return device
}

func losetup(args ...string) (string, error) {
	out, err := exec.Command("losetup", args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("losetup %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out)), nil
}
