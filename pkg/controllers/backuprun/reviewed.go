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
	"github.com/holdfast-io/holdfast/pkg/snapshots"
)

// reviewed does for a run only what its requester may do. It reviews rights again, as a BackupRun may
// be written by hand.
type reviewed struct {
	kube kubernetes.Interface
	who  enginev1alpha1.Requester
}

var _ backup.Policies = reviewed{}

// may returns nil if the requester has a right in a namespace, and a backup.NotAllowedError if not.
func (p reviewed) may(ctx context.Context, right *authorizationv1.ResourceAttributes) error {
	words := right.Verb + " " + right.Resource
	if right.Subresource != "" {
		words += "/" + right.Subresource
	}
	if p.who.Username == "" {
		return backup.NotAllowedError("the backup has no requester, whose right to " + words + " would count")
	}
	extra := map[string]authorizationv1.ExtraValue{}
	for key, values := range p.who.Extra {
		extra[key] = values
	}
	review, err := p.kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{User: p.who.Username, UID: p.who.UID, Groups: p.who.Groups, Extra: extra, ResourceAttributes: right},
	}, metav1.CreateOptions{})
	switch {
	case err != nil:
		return fmt.Errorf("ask whether %s may %s in the namespace %s: %w", p.who.Username, words, right.Namespace, err)
	case !review.Status.Allowed:
		return backup.NotAllowedError(fmt.Sprintf("%s, who asked for the backup, may not %s in the namespace %s", p.who.Username, words, right.Namespace))
	}
	return nil
}

// MayChooseClass is as in backup.Dependencies.
func (p reviewed) MayChooseClass(ctx context.Context, namespace string) error {
	return p.may(ctx, &authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "create", Group: snapshots.Snapshots.Group, Resource: snapshots.Snapshots.Resource})
}

// Policy implements backup.Policies.
func (p reviewed) Policy(ctx context.Context, namespace, name string) (map[string]string, error) {
	if err := p.may(ctx, &authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "get", Resource: "configmaps", Name: name}); err != nil {
		return nil, err
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
