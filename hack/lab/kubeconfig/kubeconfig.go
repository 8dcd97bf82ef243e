// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubeconfig writes the files by which clients find kube-apiserver and
// say who they are. All certificates are embedded, so a file can be moved.
package kubeconfig

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/holdfast-io/holdfast/hack/lab/pki"
)

// Issue writes a kubeconfig to path for a new client certificate of subject,
// signed by the cluster's authority ca, who also vouches for the server.
func Issue(path, server string, ca *pki.Authority, subject pki.Subject, now time.Time) error {
	pair, err := ca.Issue(subject, now)
	if err != nil {
		return err
	}
	return write(path, server, ca, subject.Name, object{"client-certificate-data": pair.Cert, "client-key-data": pair.Key})
}

// OfToken writes a kubeconfig to path for who holds a token.
func OfToken(path, server string, ca *pki.Authority, name, token string) error {
	return write(path, server, ca, name, object{"token": token})
}

type object = map[string]any

func write(path, server string, ca *pki.Authority, name string, credentials object) error {
	raw, err := yaml.Marshal(object{
		"apiVersion": "v1",
		"kind":       "Config",
		"clusters": []object{{"name": "lab", "cluster": object{
			"server":                     server,
			"certificate-authority-data": ca.Pair().Cert,
		}}},
		"users":           []object{{"name": name, "user": credentials}},
		"contexts":        []object{{"name": "lab", "context": object{"cluster": "lab", "user": name}}},
		"current-context": "lab",
	})
	if err != nil {
		return fmt.Errorf("kubeconfig of %s: %w", name, err)
	}
	return os.WriteFile(path, raw, 0o600)
}

// Client is a client that is who a kubeconfig of Issue says.
func Client(path string) (*http.Client, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var config struct {
		Clusters []struct {
			Cluster struct {
				CA []byte `json:"certificate-authority-data"`
			} `json:"cluster"`
		} `json:"clusters"`
		Users []struct {
			User struct {
				Cert []byte `json:"client-certificate-data"`
				Key  []byte `json:"client-key-data"`
			} `json:"user"`
		} `json:"users"`
	}
	if err := yaml.Unmarshal(raw, &config); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(config.Clusters) != 1 || len(config.Users) != 1 {
		return nil, fmt.Errorf("%s is none of a lab's", path)
	}
	own, err := tls.X509KeyPair(config.Users[0].User.Cert, config.Users[0].User.Key)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	authorities := x509.NewCertPool()
	authorities.AppendCertsFromPEM(config.Clusters[0].Cluster.CA)
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: authorities, Certificates: []tls.Certificate{own}, MinVersion: tls.VersionTLS12},
		ForceAttemptHTTP2: true,
	}}, nil
}
