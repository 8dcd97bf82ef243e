// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restorewait

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// What is said of a volume: that it is complete, or that it failed, and why.
const (
	complete = "complete"
	failed   = "failed: "
	// GivenUp is the failure of a volume whose restore has ended without it.
	GivenUp = "its restore was cancelled, or has ended without it: the restore's results say why"
	// longest is what is read of what is said.
	longest = 4096
)

// Tell says to a pod what became of one of its volumes: that it is complete, or why it
// could not be restored. podsDir is the kubelet's folder of pods. A pod that is gone is
// told nothing, and one that was told more stays at that. An error may pass: the kubelet may
// not have made the emptyDir yet.
func Tell(podsDir string, pod types.UID, waitVolume, volume, failure string) error {
	for _, name := range []string{waitVolume, volume} {
		if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
			return fmt.Errorf("%q can't be the name of a volume: %s", name, strings.Join(problems, "; "))
		}
	}
	if pod == "" || pod == "." || pod == ".." || strings.ContainsAny(string(pod), "/\x00") {
		return fmt.Errorf("%q can't be the uid of a pod", pod)
	}
	ofPod := filepath.Join(podsDir, string(pod))
	if _, err := os.Lstat(ofPod); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	// A Root never leaves its folder, whatever lies in there.
	root, err := os.OpenRoot(filepath.Join(ofPod, "volumes", "kubernetes.io~empty-dir", waitVolume))
	if err != nil {
		return fmt.Errorf("the emptyDir in which pod %s waits for its volume %s: %w", pod, volume, err)
	}
	defer root.Close()
	text := complete
	if failure != "" {
		text = failed + failure
	}
	if said := read(root, volume); said == text || said == complete || failure == GivenUp && said != "" {
		return nil
	}
	if err := write(root, volume, text); err != nil {
		return fmt.Errorf("say to pod %s what became of its volume %s: %w", pod, volume, err)
	}
	return nil
}

// read is what was said of a volume, or "".
func read(root *os.Root, volume string) string {
	// A pipe must not hold up who reads.
	file, err := root.OpenFile(volume, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return ""
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	content, err := io.ReadAll(io.LimitReader(file, longest))
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(string(content), "\n")
}

// write makes a file as a whole or not at all, also when the node loses power.
func write(root *os.Root, volume, text string) error {
	temporary := "." + volume // no name of a volume
	if err := root.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	file, err := root.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = io.WriteString(file, text+"\n")
	// Whoever the pod's user is may read it, whatever the umask.
	if err := errors.Join(err, file.Chmod(0o644), file.Sync(), file.Close()); err != nil {
		return err
	}
	return root.Rename(temporary, volume)
}
