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
	location = "default"
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

// install installs Holdfast as the quick start says, or from its manifests, and returns when it
// is ready.
func (c *cluster) install(ctx context.Context) error {
	var err error
	switch {
	case previousTree() != "":
		step("The last release, from its manifests")
		err = c.writeFormerOverlay()
	case os.Getenv("INSTALL") == "kustomize":
		step("Holdfast, from its manifests")
		err = c.writeOverlay(filepath.Join("..", "..", "artifacts"), "")
	default:
		step("Holdfast, as the quick start says")
		out, err := c.quickstart(ctx, quickstart[0])
		fmt.Print(out)
		if err != nil {
			return err
		}
		if err := c.rolledOut(ctx); err != nil {
			return err
		}
		// docs/install.md says so of a namespace that Helm has created.
		return c.show(ctx, "label", "namespace", system, "pod-security.kubernetes.io/enforce=restricted")
	}
	if err != nil {
		return err
	}
	if err := c.show(ctx, "apply", "--server-side", "-k", c.path("overlay")); err != nil {
		return err
	}
	if err := c.rolledOut(ctx); err != nil {
		return err
	}
	step("A storage location in an S3 server")
	if err := c.applyLocation(ctx); err != nil {
		return err
	}
	return c.show(ctx, "wait", "--for=condition=Available", "-n", system, "storagelocation/"+location, "--timeout=60s")
}

// rolledOut waits until all workloads are what their manifests say, and the API is served.
func (c *cluster) rolledOut(ctx context.Context) error {
	for _, command := range []string{
		"rollout status -n holdfast deployment/holdfast-apiserver --timeout=180s",
		"rollout status -n holdfast deployment/holdfast-controller --timeout=180s",
		"rollout status -n holdfast-agents daemonset/holdfast-node-agent --timeout=180s",
		"wait --for=condition=Available apiservice/v1alpha1.holdfast.io --timeout=120s",
		"get pods -A -l app.kubernetes.io/name=holdfast -o wide",
	} {
		if err := c.show(ctx, strings.Fields(command)...); err != nil {
			return err
		}
	}
	return nil
}

// writeOverlay writes the overlay of a folder of manifests, with more behind its patches.
func (c *cluster) writeOverlay(artifacts, more string) error {
	artifacts, err := filepath.Abs(artifacts)
	if err != nil {
		return err
	}
	// Kustomize takes relative paths only.
	if artifacts, err = filepath.Rel(c.path("overlay"), artifacts); err != nil {
		return err
	}
	text := fmt.Sprintf(overlay, artifacts, c.path("nodes"), c.path("cache"), c.path("nodes", "volumes")) + more
	if err := os.MkdirAll(c.path("overlay"), 0o700); err != nil {
		return err
	}
	return os.WriteFile(c.path("overlay", "kustomization.yaml"), []byte(text), 0o600)
}

// store returns the endpoint of the lab's S3 server and the keys for it, and makes the bucket.
func (c *cluster) store() (endpoint, accessKey, secretKey string, err error) {
	server, err := c.process("s3")
	if err != nil {
		return "", "", "", err
	}
	credentials, err := os.ReadFile(c.path("s3", "credentials"))
	if err != nil {
		return "", "", "", err
	}
	keys := map[string]string{}
	for line := range strings.Lines(string(credentials)) {
		if key, value, ok := strings.Cut(line, "="); ok {
			keys[strings.TrimSpace(key)] = strings.TrimSpace(value)
		}
	}
	return "http://" + server.port(), keys["aws_access_key_id"], keys["aws_secret_access_key"], os.MkdirAll(c.path("s3", "buckets", bucket), 0o755)
}

func (c *cluster) applyLocation(ctx context.Context) error {
	endpoint, accessKey, secretKey, err := c.store()
	if err != nil {
		return err
	}
	_, err = c.kubectl(ctx, fmt.Sprintf(`apiVersion: v1
kind: Secret
metadata: {name: bucket, namespace: holdfast-locations}
stringData: {accessKeyID: %q, secretAccessKey: %q}
---
apiVersion: engine.holdfast.io/v1alpha1
kind: StorageLocation
metadata: {name: %s, namespace: holdfast}
spec:
  provider: s3
  default: true
  s3: {bucket: %s, region: us-east-1, endpoint: %q, forcePathStyle: true, credentialsSecret: bucket}
`, accessKey, secretKey, location, bucket, endpoint),
		"apply", "--server-side", "-f", "-")
	return err
}
