// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package holdfast runs Holdfast in a lab: its API server, controller and
// agents as processes of this machine, each with the rights of its
// ServiceAccount and no others, so that what works here works in a cluster.
package holdfast

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/hack/lab/controlplane"
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
	Bin       string // the folder of the lab's programs, if not the one that the lab was started with
	Binary    string // the holdfast program
	Artifacts string // the folder that holds crds/ and rbac/
	// Flags that go behind the lab's own, so they win.
	APIServerFlags, ControllerFlags, AgentFlags []string
	// Agents is how many agents run in a lab without real nodes, each for a
	// Node object of its own. With real nodes there is one for each of them.
	Agents int
}

// prefix tells Holdfast's processes from the control plane's.
const prefix = "holdfast-"

// stopGrace is how long a process may take to end by itself.
const stopGrace = 20 * time.Second

// serviceAccounts are the roles' users, in the namespace holdfast.
var serviceAccounts = []string{"holdfast-apiserver", "holdfast-controller", "holdfast-node-agent"}

// Up registers and starts Holdfast, and returns once the aggregated API is
// discovered. A Holdfast that runs is stopped first; its records and stores
// stay. What it started before an error runs on, for Down.
func Up(ctx context.Context, c Config) error {
	state, err := c.Dir.Running()
	if err != nil {
		return err
	}
	if c.Bin != "" {
		state.Bin = c.Bin
	}
	if err := Stop(ctx, c.Dir); err != nil {
		return err
	}
	ports, err := controlplane.FreePorts(state.Address, 2)
	if err != nil {
		return err
	}
	r := runner{Config: c, address: state.Address, nodes: state.Nodes, apiserver: ports[0], controller: ports[1]}
	kube := kubectl.New(c.Dir, state)
	if err := r.install(ctx, kube); err != nil {
		return err
	}
	if err := c.writeCredentials(state, time.Now()); err != nil {
		return err
	}
	var started []*process.Process
	for _, s := range r.specs() {
		p, err := process.Start(c.Dir.Run(), s)
		if err != nil {
			return err
		}
		started = append(started, p)
	}
	// Registered only once it answers: kube-apiserver comes back to a server
	// that it found down after a growing pause.
	if err := started[0].AwaitHealth(ctx, r.health(), c.Dir.PKI("holdfast-ca.crt")); err != nil {
		return err
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

// Restart ends one of apiserver, controller, agent-0, agent-1 ..., with
// SIGKILL if kill is set, and starts it with the arguments that it had. A
// process that ended by itself is just started.
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
	if err != nil || role != "apiserver" {
		return err
	}
	if err := again.AwaitHealth(ctx, health(p.Args), dir.PKI("holdfast-ca.crt")); err != nil {
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

// writeCredentials makes the API server's serving certificate, of an authority
// of its own as in a cluster, and a kubeconfig per role.
func (c Config) writeCredentials(state workdir.State, now time.Time) error {
	cluster, err := pki.ReadAuthority(c.Dir.PKI(), "ca")
	if err != nil {
		return err
	}
	for _, name := range serviceAccounts {
		if err := kubeconfig.Issue(c.Dir.KubeconfigOf(name), state.Server, cluster, serviceAccount(name), now); err != nil {
			return err
		}
	}
	own, err := pki.NewAuthority("lab-holdfast-ca", now)
	if err != nil {
		return err
	}
	serving, err := own.Issue(pki.Subject{
		Name:  "holdfast-apiserver",
		Hosts: []string{"holdfast-apiserver.holdfast.svc", "localhost", "127.0.0.1", state.Address},
	}, now)
	if err != nil {
		return err
	}
	return errors.Join(own.Pair().Write(c.Dir.PKI(), "holdfast-ca"), serving.Write(c.Dir.PKI(), "holdfast-apiserver"))
}

// serviceAccount is the subject whose certificate makes its holder the very
// user that a pod of the ServiceAccount would be, for RBAC.
func serviceAccount(name string) pki.Subject {
	return pki.Subject{
		Name:   "system:serviceaccount:" + namespace + ":" + name,
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
	}
}

// runner is a Config for one lab, with its ports chosen.
type runner struct {
	Config
	address               string   // where the API server and the controller listen
	nodes                 []string // the lab's real nodes
	apiserver, controller int
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

// specs are the processes to start; the API server is the first.
func (r runner) specs() []process.Spec {
	config := func(name string) string { return r.Dir.KubeconfigOf(name) }
	specs := []process.Spec{
		r.spec("apiserver", append([]string{"apiserver",
			"--kubeconfig=" + config("holdfast-apiserver"),
			"--authentication-kubeconfig=" + config("holdfast-apiserver"),
			"--authorization-kubeconfig=" + config("holdfast-apiserver"),
			"--tls-cert-file=" + r.Dir.PKI("holdfast-apiserver.crt"),
			"--tls-private-key-file=" + r.Dir.PKI("holdfast-apiserver.key"),
			bindFlag + r.address,
			portFlag + strconv.Itoa(r.apiserver),
		}, r.APIServerFlags...)),
		r.spec("controller", append([]string{"controller",
			"--kubeconfig=" + config("holdfast-controller"),
			bindFlag + r.address,
			portFlag + strconv.Itoa(r.controller),
			"--cert-dir=" + r.Dir.Path("holdfast", "controller"),
		}, r.ControllerFlags...)),
	}
	for i, a := range r.agents() {
		specs = append(specs, r.spec(fmt.Sprintf("agent-%d", i), append([]string{"node-agent",
			"--kubeconfig=" + config("holdfast-node-agent"),
			"--node-name=" + a.node,
			"--host-pods-dir=" + a.podsDir,
			"--cache-dir=" + r.Dir.Path(fmt.Sprintf("cache-%d", i)),
		}, r.AgentFlags...)))
	}
	return specs
}

func (r runner) spec(role string, args []string) process.Spec {
	name := prefix + role
	return process.Spec{Name: name, Path: r.Binary, Args: args, Log: r.Dir.Log(name)}
}

const (
	bindFlag = "--bind-address="
	portFlag = "--secure-port="
)

func (r runner) health() string { return health(r.specs()[0].Args) }

// health is where an API server with these arguments says that it is ready.
func health(args []string) string {
	var host, port string
	for _, a := range args {
		if v, ok := strings.CutPrefix(a, bindFlag); ok {
			host = v
		}
		if v, ok := strings.CutPrefix(a, portFlag); ok {
			port = v
		}
	}
	return "https://" + net.JoinHostPort(host, port) + "/readyz"
}

func manifests(dir string) []string {
	return []string{"-f", filepath.Join(dir, "crds"), "-f", filepath.Join(dir, "rbac")}
}
