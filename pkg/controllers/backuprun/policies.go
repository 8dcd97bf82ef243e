// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backuprun

import (
	"context"
	"fmt"
	"slices"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup"
)

// runPolicies reads the volume policies of a run with its requester's rights. They are reviewed
// again here, since a BackupRun may be written by hand.
type runPolicies struct {
	kube kubernetes.Interface
	who  enginev1alpha1.Requester
}

var _ backup.Policies = runPolicies{}

// Policy implements backup.Policies.
func (p runPolicies) Policy(ctx context.Context, namespace, name string) (map[string]string, error) {
	if p.who.Username == "" {
		return nil, backup.NotAllowedError("nobody is recorded as having asked for the backup, so nobody's right to read it counts")
	}
	allowed, err := may(ctx, p.kube, p.who, &authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "get", Resource: "configmaps", Name: name})
	switch {
	case err != nil:
		return nil, fmt.Errorf("ask whether %s may read it: %w", p.who.Username, err)
	case !allowed:
		return nil, backup.NotAllowedError(fmt.Sprintf("%s, who asked for the backup, may not get configmaps in the namespace %s", p.who.Username, namespace))
	}
	// By a list, since get is another right.
	list, err := p.kube.CoreV1().ConfigMaps(namespace).List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()})
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(list.Items, func(object corev1.ConfigMap) bool { return object.Name == name })
	if i < 0 {
		return nil, apierrors.NewNotFound(corev1.Resource("configmaps"), name)
	}
	return list.Items[i].Data, nil
}
