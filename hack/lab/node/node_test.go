// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

func TestIsShim(t *testing.T) {
	const dir = "/lab/nodes"
	cmdline := func(words ...string) []byte { return []byte(strings.Join(words, "\x00") + "\x00") }
	tests := map[string]struct {
		cmdline []byte
		want    bool
	}{
		"ours":                  {cmdline("/usr/bin/containerd-shim-runc-v2", "-namespace", "k8s.io", "-id", "x", "-address", "/lab/nodes/lab-node-0/containerd.sock"), true},
		"of the machine":        {cmdline("/usr/bin/containerd-shim-runc-v2", "-namespace", "moby", "-id", "x", "-address", "/run/containerd/containerd.sock"), false},
		"of a folder like ours": {cmdline("/usr/bin/containerd-shim-runc-v2", "-address", "/lab/nodes2/containerd.sock"), false},
		"another program":       {cmdline("vi", "-address", "/lab/nodes/lab-node-0/containerd.sock"), false},
		"no value":              {cmdline("containerd-shim-runc-v2", "-address"), false},
		"a kernel thread":       {nil, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := isShim(tc.cmdline, dir); got != tc.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

func TestParseMounts(t *testing.T) {
	got := parseMounts(`22 27 0:21 / /proc rw,relatime - proc proc rw
36 35 98:0 /mnt1 /a\040lab/nodes rw,noatime shared:1 master:2 - ext4 /dev/root rw
not a mount
40 22 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw
`)
	want := []mount{{"/proc", "proc"}, {"/a lab/nodes", "ext4"}, {"/sys/fs/cgroup", "cgroup2"}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(mount{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Addresses and pod networks must neither collide nor leave their networks,
// for any number of nodes.
func TestAddressesOfAllNodes(t *testing.T) {
	hosts := netip.MustParsePrefix("10.88.0.0/16")
	pods := netip.MustParsePrefix(podNetwork)
	seen := map[string]bool{Address: true}
	for _, n := range nodes("/lab", Names(Max)) {
		if a := netip.MustParseAddr(n.address()); !hosts.Contains(a) || seen[n.address()] {
			t.Errorf("%s has the address %s", n.name, a)
		}
		if p := netip.MustParsePrefix(n.podSubnet()); !pods.Contains(p.Addr()) || seen[n.podSubnet()] {
			t.Errorf("%s has the pod network %s", n.name, p)
		}
		seen[n.address()], seen[n.podSubnet()] = true, true
		if len(n.namespace()) > 15 {
			t.Errorf("%s is too long for a network device", n.namespace())
		}
	}
}

func TestEveryNodeHasARouteToEveryOther(t *testing.T) {
	var lines []string
	for _, c := range networkCommands("/a lab", nodes("/a lab", Names(3))) {
		lines = append(lines, strings.Join(c, " "))
	}
	for _, want := range []string{
		"link set dev hflab alias /a lab",
		"route add 10.89.2.0/24 via 10.88.0.13",
		"-n hflab-0 route add 10.89.1.0/24 via 10.88.0.12",
		"-n hflab-0 route add 10.89.2.0/24 via 10.88.0.13",
		"-n hflab-2 route add 10.89.0.0/24 via 10.88.0.11",
	} {
		if !slices.Contains(lines, want) {
			t.Errorf("no %q", want)
		}
	}
	if own := "-n hflab-1 route add 10.89.1.0/24 via 10.88.0.12"; slices.Contains(lines, own) {
		t.Error("a node has a route to its own pods through itself")
	}
}

// kubelet takes its own default for an empty setting that is left out.
func TestKubeletConfigKeepsEmptySettings(t *testing.T) {
	raw, err := yaml.Marshal(nodes("/lab", Names(1))[0].kubeletConfig())
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"evictionHard: {}", "enforceNodeAllocatable: []", "cgroupsPerQOS: false"} {
		if !strings.Contains(string(raw), line+"\n") {
			t.Errorf("no %q in\n%s", line, raw)
		}
	}
}
