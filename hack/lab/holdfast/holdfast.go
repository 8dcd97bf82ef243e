// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package holdfast runs Holdfast in a lab: its API server, controller and
// agents as processes of this machine, each with the rights of its
// ServiceAccount and no others, so that what works here works in a cluster. An agent
// has the token of a pod on its node, by which the cluster knows whose agent it is. Without
// nodes the pods of maintenance Jobs are processes too (package jobs).
package holdfast

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/hack/lab/controlplane"
	"github.com/holdfast-io/holdfast/hack/lab/image"
	"github.com/holdfast-io/holdfast/hack/lab/jobs"
	"github.com/holdfast-io/holdfast/hack/lab/kubeconfig"
	"github.com/holdfast-io/holdfast/hack/lab/kubectl"
	"github.com/holdfast-io/holdfast/hack/lab/node"
	"github.com/holdfast-io/holdfast/hack/lab/pki"
	"github.com/holdfast-io/holdfast/hack/lab/process"
	"github.com/holdfast-io/holdfast/hack/lab/workdir"
)

// Config says what to run.
type Config struct {
	Dir       workdir.Dir
	Binary    string // the holdfast program
	Artifacts string // the folder of the manifests
	// Flags that go behind the lab's own, so they win.
	APIServerFlags, ControllerFlags, AgentFlags []string
	// JobRunner is the program, with its arguments, that runs the pods of Jobs in a lab
	// without real nodes.
	JobRunner []string
	// Agents is how many agents run in a lab without real nodes, each for a
	// Node object of its own. With real nodes there is one for each of them.
	Agents int
}

// prefix tells Holdfast's processes from the control plane's.
const prefix = "holdfast-"

// stopGrace is how long a process may take to end by itself.
const stopGrace = 20 * time.Second

// serviceAccounts are the users of the roles but the agents', with their namespaces.
var serviceAccounts = map[string]string{
	"holdfast-apiserver":  namespace,
	"holdfast-controller": namespace,
	jobs.Account:          jobs.Namespace,
}

// Up registers and starts Holdfast, and returns once the aggregated API is
// discovered. A Holdfast that runs is stopped first; its records and stores
// stay. What it started before an error runs on, for Down.
func Up(ctx context.Context, c Config) error {
	state, err := c.Dir.Running()
	if err != nil {
		return err
	}
	if err := Stop(ctx, c.Dir); err != nil {
		return err
	}
	r := runner{Config: c, address: state.Address, nodes: state.Nodes}
	if r.ports, err = controlplane.FreePorts(state.Address, 2+len(r.agents())); err != nil {
		return err
	}
	kube := kubectl.New(c.Dir, state)
	if err := r.install(ctx, kube); err != nil {
		return err
	}
	if err := r.writeAuditPolicy(ctx, kube); err != nil {
		return err
	}
	if err := r.writeCredentials(ctx, kube, state, time.Now()); err != nil {
		return err
	}
	if len(r.nodes) == 0 && len(r.JobRunner) > 0 {
		const name = prefix + "jobs"
		if _, err := process.Start(c.Dir.Run(), process.Spec{Name: name, Path: r.JobRunner[0], Args: r.JobRunner[1:], Log: c.Dir.Log(name)}); err != nil {
			return err
		}
	}
	var started []*process.Process
	for _, s := range r.specs() {
		p, err := process.Start(c.Dir.Run(), s)
		if err != nil {
			return err
		}
		started = append(started, p)
	}
	// Registered only once all answer: kube-apiserver comes back to a server
	// that it found down after a growing pause.
	for _, p := range started {
		if err := awaitHealth(ctx, c.Dir, p); err != nil {
			return err
		}
	}
	if err := r.register(ctx, kube); err != nil {
		return err
	}
	if err := awaitDiscovery(ctx, kube); err != nil {
		return err
	}
	for _, p := range started {
		if !p.Running() {
			return p.Ended()
		}
	}
	return nil
}

// Down stops Holdfast and takes its API out of discovery, since a registered
// API without a server stops the deletion of every namespace. Records and
// stores stay.
func Down(ctx context.Context, dir workdir.Dir) error {
	state, err := dir.Running()
	if err != nil {
		return err
	}
	_, err = kubectl.New(dir, state).Run(ctx, "delete", "apiservice", apiService, "--ignore-not-found")
	return errors.Join(err, Stop(ctx, dir))
}

// Stop stops Holdfast's processes and nothing more: enough when the control
// plane goes too.
func Stop(ctx context.Context, dir workdir.Dir) error {
	all, err := processes(dir)
	if err != nil {
		return err
	}
	var failed []error
	for _, p := range all {
		failed = append(failed, p.Stop(ctx, stopGrace))
	}
	return errors.Join(failed...)
}

// Restart ends one of apiserver, controller, jobs, agent-0, agent-1 ..., with
// SIGKILL if kill is set, starts it with the arguments that it had, and returns
// once it is ready. A process that ended by itself is just started.
func Restart(ctx context.Context, dir workdir.Dir, role string, kill bool) error {
	p, err := process.Load(dir.Run(), prefix+role)
	if errors.Is(err, fs.ErrNotExist) {
		all, err := processes(dir)
		if err != nil {
			return err
		}
		var roles []string
		for _, p := range all {
			roles = append(roles, strings.TrimPrefix(p.Name, prefix))
		}
		return fmt.Errorf("no %q runs in %s, only %v", role, dir, roles)
	}
	if err != nil {
		return err
	}
	grace := stopGrace
	if kill {
		grace = 0
	}
	if err := p.Stop(ctx, grace); err != nil {
		return err
	}
	again, err := process.Start(dir.Run(), p.Spec)
	if err != nil {
		return err
	}
	if again.Address() == "" {
		return nil // the runner of Jobs
	}
	if err := awaitHealth(ctx, dir, again); err != nil || role != "apiserver" {
		return err
	}
	state, err := dir.Running()
	if err != nil {
		return err
	}
	return awaitAvailable(ctx, kubectl.New(dir, state))
}

func processes(dir workdir.Dir) ([]*process.Process, error) {
	all, err := process.List(dir.Run())
	return slices.DeleteFunc(all, func(p *process.Process) bool { return !strings.HasPrefix(p.Name, prefix) }), err
}

// writeCredentials makes a kubeconfig for each process, and the certificate with which
// all of them serve. Its authority is not the cluster's, as in a cluster.
func (r runner) writeCredentials(ctx context.Context, kube kubectl.Kubectl, state workdir.State, now time.Time) error {
	cluster, err := pki.ReadAuthority(r.Dir.PKI(), "ca")
	if err != nil {
		return err
	}
	for name, namespace := range serviceAccounts {
		token, err := kube.Token(ctx, namespace, name)
		if err != nil {
			return err
		}
		if err := kubeconfig.OfToken(r.Dir.KubeconfigOf(name), state.Server, cluster, name, token); err != nil {
			return err
		}
	}
	for i, a := range r.agents() {
		token, err := agentToken(ctx, kube, a.node)
		if err != nil {
			return err
		}
		if err := kubeconfig.OfToken(r.Dir.KubeconfigOf(agentName(i)), state.Server, cluster, agentAccount, token); err != nil {
			return err
		}
	}
	own, err := pki.NewAuthority("lab-holdfast-ca", now)
	if err != nil {
		return err
	}
	serving, err := own.Issue(pki.Subject{
		Name:  "holdfast",
		Hosts: []string{"holdfast-apiserver.holdfast.svc", "localhost", "127.0.0.1", state.Address},
	}, now)
	if err != nil {
		return err
	}
	return errors.Join(own.Pair().Write(r.Dir.PKI(), "holdfast-ca"), serving.Write(r.Dir.PKI(), "holdfast"))
}

const (
	agentAccount    = "holdfast-node-agent"
	agentsNamespace = namespace + "-agents"
)

// agentToken makes a pod with the agents' account on a node, and a token that is bound
// to it. A lab's agent is a process of this machine, so the pod stands in for it: it
// does nothing, and without a kubelet it does not even run.
func agentToken(ctx context.Context, kube kubectl.Kubectl, node string) (string, error) {
	pod := "agent-of-" + node
	if err := kube.Apply(ctx, fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata:
  name: %s
  namespace: %s
  labels: {app.kubernetes.io/name: holdfast, app.kubernetes.io/component: node-agent}
spec:
  nodeName: %s
  serviceAccountName: %s
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 0
  tolerations: [{operator: Exists}]
  containers: [{name: agent, image: %q}]
`, pod, agentsNamespace, node, agentAccount, image.Pause)); err != nil {
		return "", err
	}
	return kube.Token(ctx, agentsNamespace, agentAccount, "--bound-object-kind=Pod", "--bound-object-name="+pod)
}

// runner is a Config for one lab, with its ports chosen.
type runner struct {
	Config
	address string   // where all roles listen
	nodes   []string // the lab's real nodes
	ports   []int    // of the API server, the controller, and each agent
}

// agent is where one agent works.
type agent struct{ node, podsDir string }

func (r runner) agents() []agent {
	var all []agent
	for _, name := range r.nodes {
		all = append(all, agent{node: name, podsDir: node.PodsDir(r.Dir, name)})
	}
	if len(all) == 0 {
		for _, name := range node.Names(r.Agents) {
			all = append(all, agent{node: name, podsDir: r.Dir.Path("pods")})
		}
	}
	return all
}

// agentName is the name of an agent's process.
func agentName(i int) string { return fmt.Sprintf("%sagent-%d", prefix, i) }

// specs are the processes to start; the API server is the first.
func (r runner) specs() []process.Spec {
	var specs []process.Spec
	add := func(name, role, user string, own, flags []string) {
		config := r.Dir.KubeconfigOf(user)
		args := append([]string{
			role,
			"--kubeconfig=" + config,
			"--authentication-kubeconfig=" + config,
			"--authorization-kubeconfig=" + config,
			"--bind-address=" + r.address,
			"--secure-port=" + strconv.Itoa(r.ports[len(specs)]),
			"--tls-cert-file=" + r.Dir.PKI("holdfast.crt"),
			"--tls-private-key-file=" + r.Dir.PKI("holdfast.key"),
		}, own...)
		name = prefix + name
		specs = append(specs, process.Spec{Name: name, Path: r.Binary, Args: append(args, flags...), Log: r.Dir.Log(name)})
	}
	const limits = "--node-agent-configmap=holdfast-node-agent"
	own := []string{limits, "--audit-policy-file=" + r.auditPolicy(), "--audit-log-path=" + r.Dir.Log(prefix+"audit")}
	if len(r.nodes) > 0 {
		own = append(own, "--advertise-address="+r.address)
	}
	add("apiserver", "apiserver", "holdfast-apiserver", own, r.APIServerFlags)
	add("controller", "controller", "holdfast-controller", []string{"--advertise-address=" + r.address}, r.ControllerFlags)
	for i, a := range r.agents() {
		name := agentName(i)
		add(strings.TrimPrefix(name, prefix), "node-agent", name, []string{
			"--node-name=" + a.node,
			limits,
			"--host-pods-dir=" + a.podsDir,
			"--cache-dir=" + r.Dir.Path(fmt.Sprintf("cache-%d", i)),
		}, r.AgentFlags)
	}
	return specs
}

func awaitHealth(ctx context.Context, dir workdir.Dir, p *process.Process) error {
	return p.AwaitHealth(ctx, "https://"+p.Address()+"/readyz", dir.PKI("holdfast-ca.crt"))
}

// auditPolicy is the file with the policy of the API server's audit log.
func (r runner) auditPolicy() string { return r.Dir.Path(prefix + "audit-policy.yaml") }

// manifests are those that do not depend on pods.
func manifests(dir string) []string {
	var files []string
	for _, name := range []string{"deploy/namespaces.yaml", "crds", "rbac", "deploy/flowschema.yaml", "deploy/network-policies.yaml", "deploy/audit-policy.yaml"} {
		files = append(files, "-f", filepath.Join(dir, filepath.FromSlash(name)))
	}
	return files
}
