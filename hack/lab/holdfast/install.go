// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package holdfast

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/hack/lab/kubectl"
)

const (
	namespace  = "holdfast"
	group      = "holdfast.io"
	apiService = "v1alpha1." + group
)

// install puts into the cluster what Holdfast needs before it starts.
func (r runner) install(ctx context.Context, kube kubectl.Kubectl) error {
	if len(r.nodes) == 0 {
		for _, a := range r.agents() {
			if err := kube.Apply(ctx, fmt.Sprintf("apiVersion: v1\nkind: Node\nmetadata: {name: %[1]s, labels: {kubernetes.io/hostname: %[1]s}}\n", a.node)); err != nil {
				return err
			}
		}
	}
	apply := []string{"apply", "--server-side", "--force-conflicts"}
	if _, err := kube.Run(ctx, append(apply, manifests(r.Artifacts)...)...); err != nil {
		return err
	}
	crds := filepath.Join(r.Artifacts, "crds")
	if _, err := kube.Run(ctx, "wait", "--for=condition=Established", "--timeout=60s", "-f", crds); err != nil {
		return err
	}
	for _, d := range []string{r.Dir.Path("store"), r.Dir.Path("pods")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	return r.createLocation(ctx, kube)
}

// writeAuditPolicy writes the policy of the manifests to where the API server reads it, as a
// pod's volume would.
func (r runner) writeAuditPolicy(ctx context.Context, kube kubectl.Kubectl) error {
	policy, err := kube.Run(ctx, "get", "configmap", "holdfast-audit-policy", "-n", namespace, "-o", `jsonpath={.data.policy\.yaml}`)
	if err != nil {
		return err
	}
	return os.WriteFile(r.auditPolicy(), []byte(policy), 0o644)
}

// createLocation makes the default storage location, unless there is one of
// this name: it is the user's to change.
func (r runner) createLocation(ctx context.Context, kube kubectl.Kubectl) error {
	const resource = "storagelocations.engine.holdfast.io"
	found, err := kube.Run(ctx, "get", resource, "default", "-n", namespace, "--ignore-not-found", "-o", "name")
	if err != nil || strings.TrimSpace(found) != "" {
		return err
	}
	return kube.Apply(ctx, fmt.Sprintf(`apiVersion: engine.holdfast.io/v1alpha1
kind: StorageLocation
metadata: {name: default, namespace: %s}
spec:
  provider: filesystem
  default: true
  filesystem: {path: %q}
`, namespace, r.Dir.Path("store")))
}

// register makes kube-apiserver send requests for the group to the API server
// on this machine. The server's certificate is checked for the Service's name.
func (r runner) register(ctx context.Context, kube kubectl.Kubectl) error {
	ca, err := os.ReadFile(r.Dir.PKI("holdfast-ca.crt"))
	if err != nil {
		return err
	}
	return kube.Apply(ctx, r.service()+fmt.Sprintf(`---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: %s}
spec:
  group: %s
  version: v1alpha1
  # Low, so that a short name that another group has too means that group's.
  groupPriorityMinimum: 200
  versionPriority: 15
  service: {name: holdfast-apiserver, namespace: %s, port: %d}
  caBundle: %s
`, apiService, group, namespace, r.ports[0], base64.StdEncoding.EncodeToString(ca)))
}

// service leads to the API server on this machine: without nodes by name, as
// loopback addresses may not be endpoints; with nodes by the endpoint that the API
// server itself writes.
func (r runner) service() string {
	if len(r.nodes) == 0 {
		return fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: holdfast-apiserver, namespace: %s}
spec:
  type: ExternalName
  externalName: localhost
  ports:
  - {name: https, port: %d}
`, namespace, r.ports[0])
	}
	return fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: holdfast-apiserver, namespace: %s}
spec:
  ports:
  - {name: https, port: %d}
`, namespace, r.ports[0])
}

// awaitDiscovery waits until kube-apiserver lists the resources of the group:
// it fetches the list after it has found the API server available.
func awaitDiscovery(ctx context.Context, kube kubectl.Kubectl) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := awaitAvailable(ctx, kube); err != nil {
		return err
	}
	for {
		names, err := kube.Run(ctx, "api-resources", "--api-group="+group, "-o", "name")
		if err == nil && strings.TrimSpace(names) != "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("the API group %s is available but not discovered", group), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func awaitAvailable(ctx context.Context, kube kubectl.Kubectl) error {
	_, err := kube.Run(ctx, "wait", "--for=condition=Available", "--timeout=60s", "apiservice/"+apiService)
	return err
}
