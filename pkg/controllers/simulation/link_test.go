// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
)

// link is the network between a part of a process and the cluster, for requests about
// runs, ConfigMaps and Leases. The part is in the field manager of what it writes, by
// which the referee knows it.
type link struct {
	*process
	part string
}

func (l link) manager() string { return l.name + " " + l.part }

func carry[T any](l link, verb, resource string, request func() (T, error)) (T, error) {
	var answer, none T
	err := l.carry(verb, resource, func() (err error) {
		answer, err = request()
		return err
	})
	if err != nil {
		return none, err
	}
	return answer, nil
}

type linkedEngine struct {
	engineclient.EngineV1alpha1Interface
	link
}

func (e linkedEngine) BackupRuns(namespace string) engineclient.BackupRunInterface {
	return linkedRuns{e.EngineV1alpha1Interface.BackupRuns(namespace), e.link}
}

func (e linkedEngine) RestoreRuns(namespace string) engineclient.RestoreRunInterface {
	return linkedRestores{e.EngineV1alpha1Interface.RestoreRuns(namespace), e.link}
}

func (e linkedEngine) StorageLocations(namespace string) engineclient.StorageLocationInterface {
	return linkedLocations{e.EngineV1alpha1Interface.StorageLocations(namespace), e.link}
}

type linkedLocations struct {
	engineclient.StorageLocationInterface
	link
}

func (l linkedLocations) UpdateStatus(ctx context.Context, location *enginev1alpha1.StorageLocation, options metav1.UpdateOptions) (*enginev1alpha1.StorageLocation, error) {
	options.FieldManager = l.manager()
	return carry(l.link, "update", "storagelocations", func() (*enginev1alpha1.StorageLocation, error) {
		return l.StorageLocationInterface.UpdateStatus(ctx, location, options)
	})
}

type linkedRuns struct {
	engineclient.BackupRunInterface
	link
}

func (r linkedRuns) Get(ctx context.Context, name string, options metav1.GetOptions) (*enginev1alpha1.BackupRun, error) {
	return carry(r.link, "get", "backupruns", func() (*enginev1alpha1.BackupRun, error) {
		return r.BackupRunInterface.Get(ctx, name, options)
	})
}

func (r linkedRuns) List(ctx context.Context, options metav1.ListOptions) (*enginev1alpha1.BackupRunList, error) {
	return carry(r.link, "list", "backupruns", func() (*enginev1alpha1.BackupRunList, error) {
		return r.BackupRunInterface.List(ctx, options)
	})
}

func (r linkedRuns) UpdateStatus(ctx context.Context, run *enginev1alpha1.BackupRun, options metav1.UpdateOptions) (*enginev1alpha1.BackupRun, error) {
	options.FieldManager = r.manager()
	return carry(r.link, "update", "backupruns", func() (*enginev1alpha1.BackupRun, error) {
		return r.BackupRunInterface.UpdateStatus(ctx, run, options)
	})
}

func (r linkedRuns) Delete(ctx context.Context, name string, options metav1.DeleteOptions) error {
	return r.carry("delete", "backupruns", func() error { return r.BackupRunInterface.Delete(ctx, name, options) })
}

type linkedRestores struct {
	engineclient.RestoreRunInterface
	link
}

func (r linkedRestores) Get(ctx context.Context, name string, options metav1.GetOptions) (*enginev1alpha1.RestoreRun, error) {
	return carry(r.link, "get", "restoreruns", func() (*enginev1alpha1.RestoreRun, error) {
		return r.RestoreRunInterface.Get(ctx, name, options)
	})
}

func (r linkedRestores) List(ctx context.Context, options metav1.ListOptions) (*enginev1alpha1.RestoreRunList, error) {
	return carry(r.link, "list", "restoreruns", func() (*enginev1alpha1.RestoreRunList, error) {
		return r.RestoreRunInterface.List(ctx, options)
	})
}

func (r linkedRestores) UpdateStatus(ctx context.Context, run *enginev1alpha1.RestoreRun, options metav1.UpdateOptions) (*enginev1alpha1.RestoreRun, error) {
	options.FieldManager = r.manager()
	return carry(r.link, "update", "restoreruns", func() (*enginev1alpha1.RestoreRun, error) {
		return r.RestoreRunInterface.UpdateStatus(ctx, run, options)
	})
}

func (r linkedRestores) Delete(ctx context.Context, name string, options metav1.DeleteOptions) error {
	return r.carry("delete", "restoreruns", func() error { return r.RestoreRunInterface.Delete(ctx, name, options) })
}

type linkedConfigMaps struct {
	corev1client.ConfigMapInterface
	link
}

func (c linkedConfigMaps) Get(ctx context.Context, name string, options metav1.GetOptions) (*corev1.ConfigMap, error) {
	return carry(c.link, "get", "configmaps", func() (*corev1.ConfigMap, error) {
		return c.ConfigMapInterface.Get(ctx, name, options)
	})
}

func (c linkedConfigMaps) Create(ctx context.Context, obj *corev1.ConfigMap, options metav1.CreateOptions) (*corev1.ConfigMap, error) {
	options.FieldManager = c.manager()
	return carry(c.link, "create", "configmaps", func() (*corev1.ConfigMap, error) {
		return c.ConfigMapInterface.Create(ctx, obj, options)
	})
}

func (c linkedConfigMaps) Update(ctx context.Context, obj *corev1.ConfigMap, options metav1.UpdateOptions) (*corev1.ConfigMap, error) {
	options.FieldManager = c.manager()
	return carry(c.link, "update", "configmaps", func() (*corev1.ConfigMap, error) {
		return c.ConfigMapInterface.Update(ctx, obj, options)
	})
}

type linkedLeases struct {
	coordinationclient.LeaseInterface
	link
}

func (l linkedLeases) Get(ctx context.Context, name string, options metav1.GetOptions) (*coordinationv1.Lease, error) {
	return carry(l.link, "get", "leases", func() (*coordinationv1.Lease, error) {
		return l.LeaseInterface.Get(ctx, name, options)
	})
}

func (l linkedLeases) Create(ctx context.Context, lease *coordinationv1.Lease, options metav1.CreateOptions) (*coordinationv1.Lease, error) {
	options.FieldManager = l.manager()
	return carry(l.link, "create", "leases", func() (*coordinationv1.Lease, error) {
		return l.LeaseInterface.Create(ctx, lease, options)
	})
}

func (l linkedLeases) Update(ctx context.Context, lease *coordinationv1.Lease, options metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	options.FieldManager = l.manager()
	return carry(l.link, "update", "leases", func() (*coordinationv1.Lease, error) {
		return l.LeaseInterface.Update(ctx, lease, options)
	})
}

func (l linkedLeases) Delete(ctx context.Context, name string, options metav1.DeleteOptions) error {
	return l.carry("delete", "leases", func() error { return l.LeaseInterface.Delete(ctx, name, options) })
}
