// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubectl runs the lab's own kubectl as the lab's administrator. It
// spares the lab command from linking a Kubernetes client.
package kubectl

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/holdfast-io/holdfast/hack/lab/workdir"
)

// Kubectl is the program together with the cluster that it talks to.
type Kubectl struct {
	path, kubeconfig, cache string
}

// New returns the kubectl of a running lab.
func New(dir workdir.Dir, s workdir.State) Kubectl {
	return Kubectl{
		path:       filepath.Join(s.Bin, "kubectl"),
		kubeconfig: dir.Kubeconfig(),
		cache:      dir.Path("kubectl-cache"),
	}
}

// Run returns what kubectl prints. An error carries what it complains about.
func (k Kubectl) Run(ctx context.Context, args ...string) (string, error) {
	return k.run(ctx, "", args)
}

// Apply applies manifests (YAML) server-side.
func (k Kubectl) Apply(ctx context.Context, manifests string) error {
	_, err := k.run(ctx, manifests, []string{"apply", "--server-side", "--force-conflicts", "-f", "-"})
	return err
}

// tokenDuration is longer than any lab lives.
const tokenDuration = "8760h"

// Token makes a token of a ServiceAccount, which is what its pods would have.
func (k Kubectl) Token(ctx context.Context, namespace, account string, args ...string) (string, error) {
	token, err := k.Run(ctx, append([]string{"create", "token", account, "-n", namespace, "--duration=" + tokenDuration}, args...)...)
	return strings.TrimSpace(token), err
}

func (k Kubectl) run(ctx context.Context, stdin string, args []string) (string, error) {
	cmd := exec.CommandContext(ctx, k.path, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+k.kubeconfig, "KUBECACHEDIR="+k.cache)
	var out, errOut bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errOut
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("kubectl %s: %w\n%s", strings.Join(args, " "), err, strings.TrimSpace(errOut.String()))
	}
	return out.String(), nil
}
