// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"fmt"
	"path/filepath"
	"strconv"

	"github.com/holdfast-io/holdfast/hack/lab/process"
)

// plan is a control plane with its ports chosen.
type plan struct {
	Config
	etcd, etcdPeer, etcdHTTP, apiserver, controllerManager, scheduler int
}

// step is one program, and the address that says that it is healthy, if the
// next one has to wait for that.
type step struct {
	spec   process.Spec
	health string
}

// The networks of a lab. ServiceNetwork holds the ClusterIPs; the first one is
// kube-apiserver's own.
const (
	ServiceNetwork = "10.90.0.0/16"
	firstServiceIP = "10.90.0.1"
)

// auditPolicy counts what tests want to count: every request for our objects, for snapshots of
// volumes, for events and for leases. Each request is one line, written when it ends;
// a watch writes a second one, when it starts. The verb is the level of the writes
// from which the history of the queue can be read.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
omitManagedFields: true
rules:
- level: %s
  verbs: [create, update, patch, delete]
  namespaces: [holdfast]
  resources:
  - group: engine.holdfast.io
    resources: [backupruns, backupruns/status, storagelocations, storagelocations/status]
  - group: ""
    resources: [configmaps]
- level: Metadata
  resources:
  - group: engine.holdfast.io
  - group: holdfast.io
  - group: coordination.k8s.io
  - group: events.k8s.io
  - group: snapshot.storage.k8s.io
  - group: ""
    resources: [events]
- level: Metadata
  namespaces: [holdfast-snapshots]
  resources:
  - group: ""
    resources: [pods, persistentvolumeclaims]
# The queue's ledger of started backups.
- level: Metadata
  namespaces: [holdfast]
  resources:
  - group: ""
    resources: [configmaps]
- level: None
`

func (p plan) auditPolicy() string {
	if p.AuditObjects {
		return fmt.Sprintf(auditPolicy, "RequestResponse")
	}
	return fmt.Sprintf(auditPolicy, "Metadata")
}

func (p plan) steps() []step {
	steps := []step{
		{p.spec("etcd", p.etcdArgs()), ""}, // kube-apiserver waits for it
		{p.spec("kube-apiserver", p.apiserverArgs()), p.server() + "/readyz"},
		{p.spec("kube-controller-manager", p.controllerManagerArgs()), local(p.controllerManager) + "/healthz"},
	}
	if len(p.Nodes) > 0 {
		steps = append(steps, step{p.spec("kube-scheduler", p.schedulerArgs()), local(p.scheduler) + "/readyz"})
	}
	return steps
}

func (p plan) spec(name string, args []string) process.Spec {
	return process.Spec{Name: name, Path: filepath.Join(p.Bin, name), Args: args, Log: p.Dir.Log(name)}
}

func (p plan) etcdArgs() []string {
	client, peer := local(p.etcd), local(p.etcdPeer)
	return []string{
		"--name=lab",
		"--data-dir=" + p.Dir.Path("etcd"),
		"--listen-client-urls=" + client,
		"--advertise-client-urls=" + client,
		// With a place of its own for HTTP, gRPC need not go by the server of that, which
		// Kubernetes advises.
		"--listen-client-http-urls=" + local(p.etcdHTTP),
		"--listen-peer-urls=" + peer,
		"--initial-advertise-peer-urls=" + peer,
		"--initial-cluster=lab=" + peer,
		"--client-cert-auth=true",
		"--trusted-ca-file=" + p.Dir.PKI("etcd-ca.crt"),
		"--cert-file=" + p.Dir.PKI("etcd.crt"),
		"--key-file=" + p.Dir.PKI("etcd.key"),
		"--peer-client-cert-auth=true",
		"--peer-trusted-ca-file=" + p.Dir.PKI("etcd-ca.crt"),
		"--peer-cert-file=" + p.Dir.PKI("etcd.crt"),
		"--peer-key-file=" + p.Dir.PKI("etcd.key"),
		// A lab's data is worth nothing after a power failure.
		"--unsafe-no-fsync=true",
	}
}

func (p plan) apiserverArgs() []string {
	args := []string{
		"--etcd-servers=" + local(p.etcd),
		"--etcd-cafile=" + p.Dir.PKI("etcd-ca.crt"),
		"--etcd-certfile=" + p.Dir.PKI("etcd-client.crt"),
		"--etcd-keyfile=" + p.Dir.PKI("etcd-client.key"),
		"--bind-address=" + p.Address,
		"--advertise-address=" + p.Address,
		"--secure-port=" + strconv.Itoa(p.apiserver),
		"--client-ca-file=" + p.Dir.PKI("ca.crt"),
		"--tls-cert-file=" + p.Dir.PKI("kube-apiserver.crt"),
		"--tls-private-key-file=" + p.Dir.PKI("kube-apiserver.key"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + p.Dir.PKI("service-account.crt"),
		"--service-account-signing-key-file=" + p.Dir.PKI("service-account.key"),
		"--service-cluster-ip-range=" + ServiceNetwork,
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true",
		"--profiling=false",
		"--audit-policy-file=" + p.Dir.Path("audit-policy.yaml"),
		"--audit-log-path=" + p.Dir.AuditLog(),
		// Megabytes; large, since a test that counts lines wants one file.
		"--audit-log-maxsize=4096",
		// How kube-apiserver tells an aggregated API server who asked.
		"--requestheader-client-ca-file=" + p.Dir.PKI("front-proxy-ca.crt"),
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-uid-headers=X-Remote-Uid",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + p.Dir.PKI("front-proxy-client.crt"),
		"--proxy-client-key-file=" + p.Dir.PKI("front-proxy-client.key"),
	}
	if len(p.Nodes) == 0 {
		return append(args,
			// The endpoints of the Service kubernetes may not be loopback
			// addresses; nothing in a lab without pods asks for them.
			"--endpoint-reconciler-type=none",
		)
	}
	return append(args,
		"--kubelet-client-certificate="+p.Dir.PKI("kube-apiserver-kubelet-client.crt"),
		"--kubelet-client-key="+p.Dir.PKI("kube-apiserver-kubelet-client.key"),
		"--kubelet-certificate-authority="+p.Dir.PKI("ca.crt"),
		// Node names resolve nowhere.
		"--kubelet-preferred-address-types=InternalIP",
		// Straight to the pods, which the host has routes to, or to ClusterIPs, which
		// lead over the first node.
		"--enable-aggregator-routing="+strconv.FormatBool(p.AggregatorRouting),
	)
}

func (p plan) controllerManagerArgs() []string {
	args := append(p.componentArgs("kube-controller-manager", p.controllerManager),
		"--service-account-private-key-file="+p.Dir.PKI("service-account.key"),
		"--root-ca-file="+p.Dir.PKI("ca.crt"),
		"--cluster-signing-cert-file="+p.Dir.PKI("ca.crt"),
		"--cluster-signing-key-file="+p.Dir.PKI("ca.key"),
		"--use-service-account-credentials=true",
		// It makes this folder, by default below /usr.
		"--flex-volume-plugin-dir="+p.Dir.Path("volume-plugins"),
	)
	if len(p.Nodes) == 0 {
		// Nodes are API objects here and no kubelet renews their leases. The
		// node lifecycle controller would call them unreachable after a
		// minute and evict the pods that tests bind to them.
		args = append(args, "--controllers=*,-node-lifecycle-controller")
	}
	return args
}

func (p plan) schedulerArgs() []string { return p.componentArgs("kube-scheduler", p.scheduler) }

// componentArgs are those that kube-controller-manager and kube-scheduler share.
func (p plan) componentArgs(name string, port int) []string {
	kubeconfig := p.Dir.KubeconfigOf(name)
	return []string{
		"--kubeconfig=" + kubeconfig,
		"--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=127.0.0.1",
		"--secure-port=" + strconv.Itoa(port),
		"--tls-cert-file=" + p.Dir.PKI("local.crt"),
		"--tls-private-key-file=" + p.Dir.PKI("local.key"),
		// There is only one, and an election would cost it seconds.
		"--leader-elect=false",
		"--profiling=false",
	}
}

func local(port int) string { return fmt.Sprintf("https://127.0.0.1:%d", port) }
