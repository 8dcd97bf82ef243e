// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const (
	// system is the system namespace.
	system = "holdfast"
	// agentsNamespace is where the node agents run.
	agentsNamespace = "holdfast-agents"
	// location is the storage location in the lab's S3 server, and bucket its bucket.
	location = "lab"
	bucket   = "backups"
	// servingName is what the certificate of the API server is for.
	servingName = "holdfast-apiserver.holdfast.svc"
)

// overlay is what the lab changes in the manifests. Its nodes are on one machine,
// so each kubelet has a folder of its own instead of /var/lib/kubelet: the agents
// mount the folder of all nodes, and each looks into that of its own node.
const overlay = `apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [%[1]s]
patches:
- target: {kind: Deployment, name: holdfast-controller}
  patch: |
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --concurrent-backups=2}
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --run-retention=2s}
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --concurrent-maintenance-jobs=10}
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --maintenance-job-start-timeout=45s}
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --host-path-roots=%[4]s}
- target: {kind: DaemonSet, name: holdfast-node-agent}
  patch: |
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --host-pods-dir=/host_pods/$(NODE_NAME)/kubelet/pods}
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --host-path-roots=%[4]s}
    - {op: add, path: /spec/template/spec/containers/0/volumeMounts/-, value: {name: volumes, mountPath: %[4]q}}
    - {op: add, path: /spec/template/spec/volumes/-, value: {name: volumes, hostPath: {path: %[4]q, type: DirectoryOrCreate}}}
- patch: |
    apiVersion: apps/v1
    kind: DaemonSet
    metadata: {name: holdfast-node-agent, namespace: holdfast-agents}
    spec: {template: {spec: {volumes: [{name: pods, hostPath: {path: %[2]q}}, {name: cache, hostPath: {path: %[3]q}}]}}}
`

// install installs Holdfast as its manifests say, and returns when it is ready.
func (c *cluster) install(ctx context.Context) error {
	if err := c.writeOverlay(); err != nil {
		return err
	}
	step("Holdfast, from its manifests")
	for _, command := range []string{
		"apply --server-side -k " + c.path("overlay"),
		"rollout status -n holdfast deployment/holdfast-apiserver --timeout=120s",
		"rollout status -n holdfast deployment/holdfast-controller --timeout=120s",
		"rollout status -n holdfast-agents daemonset/holdfast-node-agent --timeout=120s",
		"wait --for=condition=Available apiservice/v1alpha1.holdfast.io --timeout=120s",
		"get pods -A -l app.kubernetes.io/name=holdfast -o wide",
	} {
		if err := c.show(ctx, strings.Fields(command)...); err != nil {
			return err
		}
	}
	step("A storage location in an S3 server")
	if err := c.applyLocation(ctx); err != nil {
		return err
	}
	return c.show(ctx, "wait", "--for=condition=Available", "-n", system, "storagelocation/"+location, "--timeout=60s")
}

func (c *cluster) writeOverlay() error {
	artifacts, err := filepath.Abs(filepath.Join("..", "..", "artifacts"))
	if err != nil {
		return err
	}
	// Kustomize takes relative paths only.
	if artifacts, err = filepath.Rel(c.path("overlay"), artifacts); err != nil {
		return err
	}
	text := fmt.Sprintf(overlay, artifacts, c.path("nodes"), c.path("cache"), c.path("volumes"))
	if err := os.MkdirAll(c.path("overlay"), 0o700); err != nil {
		return err
	}
	return os.WriteFile(c.path("overlay", "kustomization.yaml"), []byte(text), 0o600)
}

func (c *cluster) applyLocation(ctx context.Context) error {
	server, err := c.process("s3")
	if err != nil {
		return err
	}
	credentials, err := os.ReadFile(c.path("s3", "credentials"))
	if err != nil {
		return err
	}
	keys := map[string]string{}
	for line := range strings.Lines(string(credentials)) {
		if key, value, ok := strings.Cut(line, "="); ok {
			keys[strings.TrimSpace(key)] = strings.TrimSpace(value)
		}
	}
	if err := os.MkdirAll(c.path("s3", "buckets", bucket), 0o755); err != nil {
		return err
	}
	_, err = c.kubectl(ctx, fmt.Sprintf(`apiVersion: v1
kind: Secret
metadata: {name: lab-credentials, namespace: holdfast-locations}
stringData: {accessKeyID: %q, secretAccessKey: %q}
---
apiVersion: engine.holdfast.io/v1alpha1
kind: StorageLocation
metadata: {name: %s, namespace: holdfast}
spec:
  provider: s3
  default: true
  s3: {bucket: %s, endpoint: "http://%s", forcePathStyle: true, credentialsSecret: lab-credentials}
`, keys["aws_access_key_id"], keys["aws_secret_access_key"], location, bucket, server.port()),
		"apply", "--server-side", "-f", "-")
	return err
}
