// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"time"

	"github.com/holdfast-io/holdfast/hack/lab/kubeconfig"
	"github.com/holdfast-io/holdfast/hack/lab/pki"
)

// writeCredentials makes all certificates and kubeconfigs of the control
// plane. Authorities are apart where one's clients must not be another's:
// who holds a certificate of the cluster may not talk to etcd, nor tell an
// aggregated API server who is asking.
func (p plan) writeCredentials(now time.Time) error {
	authorities := map[string]*pki.Authority{}
	for _, name := range []string{"ca", "etcd-ca", "front-proxy-ca", "service-account"} {
		a, err := pki.NewAuthority("lab-"+name, now)
		if err != nil {
			return err
		}
		if err := a.Pair().Write(p.Dir.PKI(), name); err != nil {
			return err
		}
		authorities[name] = a
	}
	loopback := []string{"localhost", "127.0.0.1"}
	for _, c := range []struct {
		authority, file string
		subject         pki.Subject
	}{
		{"etcd-ca", "etcd", pki.Subject{Name: "etcd", Hosts: loopback}},
		{"etcd-ca", "etcd-client", pki.Subject{Name: "kube-apiserver"}},
		{"front-proxy-ca", "front-proxy-client", pki.Subject{Name: "front-proxy-client"}},
		{"ca", "kube-apiserver", pki.Subject{Name: "kube-apiserver", Hosts: append([]string{
			"kubernetes", "kubernetes.default", "kubernetes.default.svc", firstServiceIP, p.Address}, loopback...)}},
		{"ca", "kube-apiserver-kubelet-client", pki.Subject{Name: "kube-apiserver-kubelet-client", Groups: []string{"system:masters"}}},
		{"ca", "local", pki.Subject{Name: "local", Hosts: loopback}},
	} {
		pair, err := authorities[c.authority].Issue(c.subject, now)
		if err != nil {
			return err
		}
		if err := pair.Write(p.Dir.PKI(), c.file); err != nil {
			return err
		}
	}
	for file, s := range map[string]pki.Subject{
		p.Dir.Kubeconfig(): {Name: "lab-admin", Groups: []string{"system:masters"}},
		p.Dir.KubeconfigOf("kube-controller-manager"): {Name: "system:kube-controller-manager"},
		p.Dir.KubeconfigOf("kube-scheduler"):          {Name: "system:kube-scheduler"},
	} {
		if err := kubeconfig.Issue(file, p.server(), authorities["ca"], s, now); err != nil {
			return err
		}
	}
	return nil
}
