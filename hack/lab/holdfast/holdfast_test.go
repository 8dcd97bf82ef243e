// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package holdfast

import (
	"slices"
	"testing"
)

func TestSpecs(t *testing.T) {
	r := runner{
		Config: Config{
			Dir:             "/lab",
			Binary:          "/bin/holdfast",
			APIServerFlags:  []string{"--v=6"},
			ControllerFlags: []string{"--concurrent-backups=4"},
			AgentFlags:      []string{"--v=2"},
			Agents:          2,
		},
		address: "127.0.0.1", ports: []int{20001, 20002, 20003, 20004},
	}
	specs := r.specs()
	want := []struct {
		name, role, last string
		has              []string
	}{
		{"holdfast-apiserver", "apiserver", "--v=6", []string{"--secure-port=20001", "--authorization-kubeconfig=/lab/kubeconfig-holdfast-apiserver", "--node-agent-configmap=holdfast-node-agent"}},
		{"holdfast-controller", "controller", "--concurrent-backups=4", []string{"--secure-port=20002", "--kubeconfig=/lab/kubeconfig-holdfast-controller"}},
		{"holdfast-agent-0", "node-agent", "--v=2", []string{"--secure-port=20003", "--kubeconfig=/lab/kubeconfig-holdfast-agent-0", "--node-name=lab-node-0", "--cache-dir=/lab/cache-0", "--node-agent-configmap=holdfast-node-agent"}},
		{"holdfast-agent-1", "node-agent", "--v=2", []string{"--secure-port=20004", "--kubeconfig=/lab/kubeconfig-holdfast-agent-1", "--node-name=lab-node-1", "--cache-dir=/lab/cache-1", "--host-pods-dir=/lab/pods"}},
	}
	if len(specs) != len(want) {
		t.Fatalf("%d processes, want %d", len(specs), len(want))
	}
	for i, w := range want {
		s := specs[i]
		if s.Name != w.name || s.Args[0] != w.role {
			t.Errorf("process %d is %s with role %s, want %s with %s", i, s.Name, s.Args[0], w.name, w.role)
		}
		if last := s.Args[len(s.Args)-1]; last != w.last {
			t.Errorf("%s: the last flag is %s, want the caller's %s, so that it wins", s.Name, last, w.last)
		}
		for _, flag := range w.has {
			if !slices.Contains(s.Args, flag) {
				t.Errorf("%s: no %s in %v", s.Name, flag, s.Args)
			}
		}
	}
}

func TestEveryRealNodeHasAnAgent(t *testing.T) {
	r := runner{Config: Config{Dir: "/lab", Agents: 1}, nodes: []string{"lab-node-0", "lab-node-1"}, ports: []int{1, 2, 3, 4}}
	specs := r.specs()
	if len(specs) != 4 {
		t.Fatalf("%d processes, want the API server, the controller and two agents", len(specs))
	}
	for i, name := range r.nodes {
		for _, flag := range []string{"--node-name=" + name, "--host-pods-dir=/lab/nodes/" + name + "/kubelet/pods"} {
			if !slices.Contains(specs[2+i].Args, flag) {
				t.Errorf("%s: no %s in %v", specs[2+i].Name, flag, specs[2+i].Args)
			}
		}
	}
}
