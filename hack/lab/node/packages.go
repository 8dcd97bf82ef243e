// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// needed are the programs of the distribution that nodes use, each with the
// Debian package that has it.
var needed = []struct{ program, pkg string }{
	{"containerd", "containerd"},
	{"ctr", "containerd"},
	{"runc", "runc"},
	{"nft", "nftables"},
	{"iptables", "iptables"},
	{"conntrack", "conntrack"},
	{"socat", "socat"},
	{"ip", "iproute2"},
	{"modprobe", "kmod"},
	{"busybox", "busybox-static"},
	{"nsenter", "util-linux"},
}

// cniFolders are where distributions keep the CNI plugins.
var cniFolders = []string{"/usr/lib/cni", "/opt/cni/bin"}

const cniPackage = "containernetworking-plugins"

// cniPlugins returns the folder that has all plugins of writeCNI.
func cniPlugins() (string, error) {
	for _, dir := range cniFolders {
		missing := slices.ContainsFunc([]string{"bridge", "host-local", "loopback"}, func(p string) bool {
			_, err := os.Stat(filepath.Join(dir, p))
			return err != nil
		})
		if !missing {
			return dir, nil
		}
	}
	return "", fmt.Errorf("no CNI plugins in %s; install the package %s", strings.Join(cniFolders, " or "), cniPackage)
}

// ensurePackages installs what is missing, with the package manager of Debian
// and its children.
func ensurePackages(ctx context.Context, say func(string)) error {
	var missing []string
	for _, n := range needed {
		if _, err := exec.LookPath(n.program); err != nil {
			missing = append(missing, n.pkg)
		}
	}
	if _, err := cniPlugins(); err != nil {
		missing = append(missing, cniPackage)
	}
	if len(missing) == 0 {
		return nil
	}
	packages := slices.Compact(missing)
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("nodes need programs that this machine lacks and there is no apt-get; install what Debian calls %s", strings.Join(packages, ", "))
	}
	say("installing " + strings.Join(packages, " "))
	install := append([]string{"install", "-y", "-q", "--no-install-recommends"}, packages...)
	for _, args := range [][]string{{"update", "-q"}, install} {
		cmd := exec.CommandContext(ctx, "apt-get", args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s: %w\n%s", strings.Join(args, " "), err, out)
		}
	}
	return nil
}
