// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/holdfast-io/holdfast/hack/lab/image"
	"github.com/holdfast-io/holdfast/hack/lab/kubeconfig"
	"github.com/holdfast-io/holdfast/hack/lab/pki"
	"github.com/holdfast-io/holdfast/hack/lab/workdir"
)

type object = map[string]any

// writeConfigs writes all files of a node before its programs start.
func (n node) writeConfigs(state workdir.State, server string, now time.Time) error {
	for _, d := range []string{"cni", "kubelet", "certs.d/_default"} {
		if err := os.MkdirAll(n.path(d), 0o755); err != nil {
			return err
		}
	}
	plugins, err := cniPlugins()
	if err != nil {
		return err
	}
	layers, err := snapshotter(n.path())
	if err != nil {
		return err
	}
	ca, err := pki.ReadAuthority(n.dir.PKI(), "ca")
	if err != nil {
		return err
	}
	user := "system:node:" + n.name
	serving, err := ca.Issue(pki.Subject{Name: user, Groups: []string{"system:nodes"}, Hosts: []string{n.name, n.address()}}, now)
	if err != nil {
		return err
	}
	return errors.Join(
		serving.Write(n.dir.PKI(), n.name),
		kubeconfig.Issue(n.path("kubeconfig-kubelet"), state.Server, ca, pki.Subject{Name: user, Groups: []string{"system:nodes"}}, now),
		kubeconfig.Issue(n.path("kubeconfig-kube-proxy"), state.Server, ca, pki.Subject{Name: "system:kube-proxy"}, now),
		os.WriteFile(n.path("containerd.toml"), []byte(n.containerdConfig(plugins, layers)), 0o644),
		// For images of every name: no other registry is ever asked. Old versions want a host too.
		os.WriteFile(n.path("certs.d", "_default", "hosts.toml"), fmt.Appendf(nil, "server = %[1]q\n[host.%[1]q]\n", "http://"+server), 0o644),
		writeYAML(n.path("kubelet.yaml"), n.kubeletConfig()),
		writeYAML(n.path("kube-proxy.yaml"), n.proxyConfig()),
		writeJSON(n.path("cni", "10-lab.conflist"), n.cniConfig()),
		// Pods have no DNS here; the host's servers are out of their reach.
		os.WriteFile(n.path("resolv.conf"), nil, 0o644),
	)
}

// containerdConfig keeps everything of this containerd in the node's folder,
// so several run side by side and nothing stays behind.
func (n node) containerdConfig(cniPlugins, snapshotter string) string {
	return fmt.Sprintf(`version = 2
root = %[1]q
state = %[2]q

[grpc]
  address = %[3]q

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %[4]q
  # A machine may lack the right to lower an oom_score_adj (CAP_SYS_RESOURCE),
  # and runc fails where it may not.
  restrict_oom_score_adj = true
  # Not below /run/netns, where they would outlive the lab.
  netns_mounts_under_state_dir = true

  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = %[9]q

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = %[5]q
    conf_dir = %[6]q

  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = %[8]q

  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      Root = %[7]q
`, n.path("containerd"), n.path("containerd-state"), n.socket(), image.Pause, cniPlugins, n.path("cni"), n.path("runc"), snapshotter, n.path("certs.d"))
}

func (n node) kubeletConfig() object {
	return object{
		"apiVersion": "kubelet.config.k8s.io/v1beta1",
		"kind":       "KubeletConfiguration",
		"address":    n.address(),
		"authentication": object{
			"anonymous": object{"enabled": false},
			"webhook":   object{"enabled": true},
			"x509":      object{"clientCAFile": n.dir.PKI("ca.crt")},
		},
		"authorization":            object{"mode": "Webhook"},
		"tlsCertFile":              n.dir.PKI(n.name + ".crt"),
		"tlsPrivateKeyFile":        n.dir.PKI(n.name + ".key"),
		"containerRuntimeEndpoint": "unix://" + n.socket(),
		"resolvConf":               n.path("resolv.conf"),
		// Below /var by default.
		"podLogsDir":      n.path("pod-logs"),
		"volumePluginDir": n.path("volume-plugins"),
		// No cgroups but the containers' own: nothing then depends on the
		// version of the machine's cgroups and on who manages them.
		"cgroupDriver":           "cgroupfs",
		"cgroupsPerQOS":          false,
		"enforceNodeAllocatable": []string{},
		"failCgroupV1":           false,
		"failSwapOn":             false,
		"oomScoreAdj":            0,
		// Nothing is ever evicted or collected for want of disk: it is the
		// machine's, and others fill it.
		"localStorageCapacityIsolation": false,
		"evictionHard":                  object{},
		"imageGCHighThresholdPercent":   100,
		// Tests wait for volumes and for the ends of pods.
		"syncFrequency": "10s",
	}
}

func (n node) proxyConfig() object {
	return object{
		"apiVersion":       "kubeproxy.config.k8s.io/v1alpha1",
		"kind":             "KubeProxyConfiguration",
		"clientConnection": object{"kubeconfig": n.path("kubeconfig-kube-proxy")},
		"mode":             "nftables",
		"hostnameOverride": n.name,
		"bindAddress":      n.address(),
		"clusterCIDR":      podNetwork,
		// Settings of the whole machine, which a node must not touch.
		"conntrack":   object{"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
		"oomScoreAdj": 0,
	}
}

func (n node) cniConfig() object {
	return object{
		"cniVersion": "0.4.0",
		"name":       n.namespace(),
		"plugins": []object{{
			"type":   "bridge",
			"bridge": "pods",
			// The node is its pods' gateway.
			"isGateway": true,
			"ipMasq":    false,
			// A pod that calls a Service which leads back to it.
			"hairpinMode": true,
			"ipam": object{
				"type":    "host-local",
				"ranges":  [][]object{{{"subnet": n.podSubnet()}}},
				"routes":  []object{{"dst": "0.0.0.0/0"}},
				"dataDir": n.path("cni-leases"),
			},
		}},
	}
}

func writeYAML(path string, o object) error {
	raw, err := yaml.Marshal(o)
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return os.WriteFile(path, raw, 0o644)
}

func writeJSON(path string, o object) error {
	raw, err := json.MarshalIndent(o, "", "  ")
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return os.WriteFile(path, raw, 0o644)
}
