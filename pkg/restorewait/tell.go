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

const (
	complete = "complete"
	failed   = "failed: "
	// GivenUp is the failure of a volume whose restore ended without it.
	GivenUp = "its restore was cancelled, or has ended without it: the restore's results say why"
	longest = 4096
)

// Tell tells a pod the end of one volume: complete, or the failure. podsDir is the kubelet's folder
// of pods. A missing pod is ignored, and a complete volume stays so. An error may be temporary: the
// kubelet may not have made the emptyDir yet.
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
	// A Root never leaves its folder.
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

func read(root *os.Root, volume string) string {
	// A pipe must not block the reader.
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

// write makes a file whole or not at all, also if power fails.
func write(root *os.Root, volume, text string) error {
	temporary := "." + volume
	if err := root.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	file, err := root.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = io.WriteString(file, text+"\n")
	// Any user of the pod may read it, with any umask.
	if err := errors.Join(err, file.Chmod(0o644), file.Sync(), file.Close()); err != nil {
		return err
	}
	return root.Rename(temporary, volume)
}
