// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/holdfast-io/holdfast/hack/lab/controlplane"
	"github.com/holdfast-io/holdfast/hack/lab/process"
	"github.com/holdfast-io/holdfast/hack/lab/workdir"
)

// The nodes' network: a bridge on which the host is .0.1 and node N is
// .0.(11+N), and behind each node the network of its pods. Everybody has a
// route to everybody, the host too, so nothing is masqueraded, save what the host
// sends to ClusterIPs: it has no kube-proxy, so that goes over the first node's.
// There is one such network per machine.
const (
	// Address is the host's, where servers for the nodes listen.
	Address    = "10.88.0.1"
	prefixLen  = 16
	podNetwork = "10.89.0.0/16"
	// bridge is the name of the bridge, and the beginning of the names of all
	// else that lies outside of the lab's folder and has a name.
	bridge = "hflab"
)

func (n node) address() string   { return fmt.Sprintf("10.88.0.%d", 11+n.index) }
func (n node) podSubnet() string { return fmt.Sprintf("10.89.%d.0/24", n.index) }

// namespace is also the name of the node's device on the bridge and of its CNI
// network.
func (n node) namespace() string { return fmt.Sprintf("%s-%d", bridge, n.index) }

func networkUp(ctx context.Context, all []node) error {
	owner := string(all[0].dir)
	// What a crash left.
	if err := networkDown(ctx); err != nil {
		return err
	}
	for _, args := range networkCommands(owner, all) {
		if _, err := command(ctx, "ip", args...); err != nil {
			return err
		}
	}
	for _, n := range all {
		// Every network namespace has its own.
		if _, err := command(ctx, "nsenter", "--net=/run/netns/"+n.namespace(), "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"); err != nil {
			return err
		}
	}
	if bridgedIsFiltered() {
		// Firewalls of container engines drop what they don't know.
		_, err := command(ctx, "iptables", append([]string{"-I"}, forwardRule...)...)
		return err
	}
	return nil
}

// networkCommands are the arguments for ip, in order.
func networkCommands(owner string, all []node) [][]string {
	var out [][]string
	ip := func(format string, a ...any) { out = append(out, strings.Fields(fmt.Sprintf(format, a...))) }
	ip("link add %s type bridge", bridge)
	// Whose bridge it is. The kernel keeps 255 bytes; a longer path would not
	// be usable for the sockets either.
	out = append(out, []string{"link", "set", "dev", bridge, "alias", owner})
	ip("addr add %s/%d dev %s", Address, prefixLen, bridge)
	ip("link set %s up", bridge)
	for _, n := range all {
		ns := n.namespace()
		ip("netns add %s", ns)
		ip("link add %s type veth peer name eth0 netns %s", ns, ns)
		ip("link set %s master %s up", ns, bridge)
		ip("-n %s addr add %s/%d dev eth0", ns, n.address(), prefixLen)
		ip("-n %s link set lo up", ns)
		ip("-n %s link set eth0 up", ns)
		ip("-n %s route add default via %s", ns, Address)
		ip("route add %s via %s", n.podSubnet(), n.address())
		for _, other := range all {
			if other.index != n.index {
				ip("-n %s route add %s via %s", ns, other.podSubnet(), other.address())
			}
		}
	}
	ip("route add %s via %s", controlplane.ServiceNetwork, all[0].address())
	return out
}

// networkDown removes bridge, namespaces, and with them devices and routes.
func networkDown(ctx context.Context) error {
	var failed []error
	namespaces, err := os.ReadDir("/run/netns")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, ns := range namespaces {
		if !strings.HasPrefix(ns.Name(), bridge+"-") {
			continue
		}
		// The pair of devices would go too, but only once the last process
		// in the namespace has ended.
		if exists("/sys/class/net/" + ns.Name()) {
			_, err := command(ctx, "ip", "link", "delete", ns.Name())
			failed = append(failed, err)
		}
		_, err := command(ctx, "ip", "netns", "delete", ns.Name())
		failed = append(failed, err)
	}
	if exists("/sys/class/net/" + bridge) {
		_, err := command(ctx, "ip", "link", "delete", bridge)
		failed = append(failed, err)
		if bridgedIsFiltered() {
			// Without the rule this fails, and that is fine.
			_, _ = command(ctx, "iptables", append([]string{"-D"}, forwardRule...)...)
		}
	}
	return errors.Join(failed...)
}

var forwardRule = []string{"FORWARD", "-i", bridge, "-o", bridge, "-j", "ACCEPT"}

// bridgedIsFiltered says whether the host's firewall sees what goes from node
// to node, though it only crosses the bridge.
func bridgedIsFiltered() bool {
	raw, err := os.ReadFile("/proc/sys/net/bridge/bridge-nf-call-iptables")
	return err == nil && strings.TrimSpace(string(raw)) == "1"
}

// bridgeOwner is the folder of the lab that made the bridge, if there is one.
func bridgeOwner() string {
	raw, err := os.ReadFile("/sys/class/net/" + bridge + "/ifalias")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
}

// alone is an error if another lab has nodes on this machine, or is about to.
// One of which nothing runs does not count; its network is taken down.
func alone(dir workdir.Dir) error {
	other := workdir.Dir(bridgeOwner())
	if other == "" || other == dir {
		return nil
	}
	all, err := process.List(other.Run())
	if err != nil {
		return err
	}
	running := slices.ContainsFunc(all, (*process.Process).Running)
	if running || other.Locked() {
		return fmt.Errorf("the lab in %s has nodes already and a machine has room for one such lab; stop it with `lab down --dir %s`", other, other)
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
