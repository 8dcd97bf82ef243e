// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/holdfast-io/holdfast/hack/lab/workdir"
)

// sysctls are the kernel settings of the machine that kubelet changes when it
// starts.
var sysctls = []string{
	"vm/overcommit_memory",
	"vm/panic_on_oom",
	"kernel/panic",
	"kernel/panic_on_oops",
	"kernel/keys/root_maxkeys",
	"kernel/keys/root_maxbytes",
}

func sysctlFile(dir workdir.Dir) string { return dir.Path("nodes", "sysctls.json") }

// saveSysctls writes the settings down for restoreSysctls.
func saveSysctls(dir workdir.Dir) error {
	values := map[string]string{}
	for _, s := range sysctls {
		raw, err := os.ReadFile("/proc/sys/" + s)
		if err != nil {
			continue // a kernel without it
		}
		values[s] = strings.TrimSpace(string(raw))
	}
	raw, err := json.Marshal(values)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir.Path("nodes"), 0o755); err != nil {
		return err
	}
	return os.WriteFile(sysctlFile(dir), raw, 0o644)
}

func restoreSysctls(dir workdir.Dir) error {
	raw, err := os.ReadFile(sysctlFile(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var values map[string]string
	if err := json.Unmarshal(raw, &values); err != nil {
		return fmt.Errorf("%s: %w", sysctlFile(dir), err)
	}
	var failed []error
	for s, v := range values {
		failed = append(failed, os.WriteFile("/proc/sys/"+s, []byte(v), 0o644))
	}
	return errors.Join(failed...)
}

// shareMounts makes a folder a mount of its own whose mounts containers see,
// also those that come later: kubelet needs that for volumes, and a machine's
// root may be private.
func shareMounts(dir string) error {
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s: %w", dir, err)
	}
	if err := unix.Mount("", dir, "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("share the mounts below %s: %w", dir, err)
	}
	return nil
}

// unmountBelow unmounts everything in dir, and dir. An error means that
// removing dir would remove what is mounted there.
func unmountBelow(dir string) error {
	mounts, err := readMounts()
	if err != nil {
		return err
	}
	var failed []error
	for _, m := range slices.Backward(mounts) { // the latest first
		if m.point == dir || strings.HasPrefix(m.point, dir+"/") {
			if err := unix.Unmount(m.point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
				failed = append(failed, fmt.Errorf("unmount %s: %w", m.point, err))
			}
		}
	}
	return errors.Join(failed...)
}

// snapshotter is the way in which containerd can keep the layers of images in
// this folder: overlays need another file system than an overlay, which is
// what a container has. Copies work anywhere.
func snapshotter(dir string) (string, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return "", fmt.Errorf("file system of %s: %w", dir, err)
	}
	if fs.Type == unix.OVERLAYFS_SUPER_MAGIC {
		return "native", nil
	}
	return "overlayfs", nil
}

// mount is a line of /proc/self/mountinfo.
type mount struct{ point, kind string }

func readMounts() ([]mount, error) {
	raw, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return parseMounts(string(raw)), nil
}

// parseMounts reads the fields as proc_pid_mountinfo(5) gives them: the fifth
// is the mount point, the first behind the single hyphen is the type.
func parseMounts(mountinfo string) []mount {
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	var mounts []mount
	for line := range strings.Lines(mountinfo) {
		fields := strings.Fields(line)
		hyphen := slices.Index(fields, "-")
		if hyphen < 6 || hyphen+1 >= len(fields) {
			continue
		}
		mounts = append(mounts, mount{point: unescape.Replace(fields[4]), kind: fields[hyphen+1]})
	}
	return mounts
}
