// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	holdfastclientset "github.com/holdfast-io/holdfast/pkg/generated/holdfast/clientset/versioned"
	"github.com/holdfast-io/holdfast/pkg/registry/recorded"
	"github.com/holdfast-io/holdfast/pkg/registry/schedule"
	domain "github.com/holdfast-io/holdfast/pkg/schedule"
)

// asking makes requests to this process as another user, through authorization, audit and admission. So it needs
// no right to impersonate in the cluster, and no credentials leave the process.
type asking struct {
	loopback  *rest.Config
	schedules *schedule.Publisher
}

func (a asking) config() *rest.Config {
	config := rest.CopyConfig(a.loopback)
	config.QPS = -1
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	return config
}

// client returns a client as a recorded requester. Its requests name the schedule.
func (a asking) client(requester enginev1alpha1.Requester, of *v1alpha1.Schedule) (holdfastclientset.Interface, error) {
	if requester.Username == "" { // without it the client would not impersonate
		return nil, apierrors.NewForbidden(v1alpha1.Resource("backups"), "", errors.New("the record does not say as whom to ask"))
	}
	config := a.config()
	config.Impersonate = rest.ImpersonationConfig{UserName: requester.Username, UID: requester.UID, Groups: requester.Groups, Extra: map[string][]string{}}
	for key, values := range requester.Extra {
		config.Impersonate.Extra[key] = values
	}
	config.Impersonate.Extra[recorded.ExtraScheduleUID] = []string{string(of.UID)}
	config.Impersonate.Extra[recorded.ExtraSchedule] = []string{of.Namespace + "/" + of.Name}
	client, err := holdfastclientset.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a client of this server: %w", err)
	}
	return client, nil
}

// Create requests a backup for a schedule.
func (a asking) Create(ctx context.Context, requester enginev1alpha1.Requester, of *v1alpha1.Schedule, backup *v1alpha1.Backup) error {
	client, err := a.client(requester, of)
	if err != nil {
		return err
	}
	_, err = client.HoldfastV1alpha1().Backups(backup.Namespace).Create(ctx, backup, metav1.CreateOptions{})
	return err
}

// Delete requests the deletion of a schedule's backup.
func (a asking) Delete(ctx context.Context, requester enginev1alpha1.Requester, of *v1alpha1.Schedule, name string, uid types.UID) error {
	client, err := a.client(requester, of)
	if err != nil {
		return err
	}
	return client.HoldfastV1alpha1().RESTClient().Post().Namespace(of.Namespace).Resource("backups").Name(name).SubResource("deletion").
		Body(&v1alpha1.BackupDeletion{Preconditions: &v1alpha1.BackupDeletionPreconditions{UID: uid, Superseded: true}}).Do(ctx).Error()
}

// MadeBy returns the uid of a backup's schedule, by this server's own knowledge.
func (a asking) MadeBy(ctx context.Context, namespace, name string) (types.UID, error) {
	client, err := holdfastclientset.NewForConfig(a.config())
	if err != nil {
		return "", fmt.Errorf("making a client of this server: %w", err)
	}
	backup, err := client.HoldfastV1alpha1().Backups(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	return schedule.MadeBy(backup), nil
}

func (a asking) trigger(ctx context.Context, of *v1alpha1.Schedule, due metav1.Time, triggeredBy string) (string, error) {
	// The spec and its requester must be of one version.
	s, entry, _ := a.schedules.Schedule(types.NamespacedName{Namespace: of.Namespace, Name: of.Name})
	if entry == nil {
		return "", apierrors.NewNotFound(schedule.Resource.GroupResource, of.Name)
	}
	backup := domain.NewBackup(s, due.Time)
	metav1.SetMetaDataAnnotation(&backup.ObjectMeta, domain.AnnotationTriggeredBy, triggeredBy)
	return backup.Name, a.Create(ctx, entry.Spec.Requester, s, backup)
}
