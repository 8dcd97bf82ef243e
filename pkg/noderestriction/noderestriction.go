// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package noderestriction finds out whether kube-apiserver has the admission plugin NodeRestriction, which keeps
// nodes from creating pods in any namespace.
package noderestriction

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// State is whether the plugin is on.
type State string

const (
	On  State = "On"
	Off State = "Off"
	// Unknown means that the answer does not tell.
	Unknown State = "Unknown"
)

// User is the node that Check acts as. It need not exist.
const User = "system:node:check"

// later are parts of refusals by later plugins of kube-apiserver: NodeRestriction has refused nothing then.
var later = []string{`admission webhook "`, "ValidatingAdmissionPolicy ", "violates PodSecurity", "exceeded quota"}

// Check creates a pod in a dry run, as a node. The config's user must be allowed to act as one. Only Unknown comes
// with an error, the answer.
func Check(ctx context.Context, config *rest.Config, namespace string) (State, error) {
	config = rest.CopyConfig(config)
	config.WarningHandler = rest.NoWarnings{}
	config.Impersonate = rest.ImpersonationConfig{UserName: User, Groups: []string{"system:nodes"}}
	node, err := kubernetes.NewForConfig(config)
	if err != nil {
		return Unknown, err
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "check"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "check", Image: "none"}}}}
	_, err = node.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	switch {
	case err == nil || slices.ContainsFunc(later, func(text string) bool { return strings.Contains(err.Error(), text) }):
		return Off, nil
	case strings.Contains(err.Error(), "can only create mirror pods"):
		return On, nil
	}
	return Unknown, fmt.Errorf("a pod of a node was refused for another reason: %w", err)
}
