// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package projection

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/tools/cache"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	clusteridentity "github.com/holdfast-io/holdfast/pkg/identity"
)

// identify tells the catalogue who this cluster is.
func (p *Projector) identify() {
	var published *corev1.ConfigMap
	for _, obj := range p.Identity.GetStore().List() {
		published = obj.(*corev1.ConfigMap)
	}
	p.catalog.SetIdentity(clusteridentity.Of(published))
}

// placeByNamespaces places everything by the namespaces that exist. Each change is
// followed after that.
func (p *Projector) placeByNamespaces() {
	p.placing.Lock()
	defer p.placing.Unlock()
	namespaces, err := p.Namespaces.Lister().List(labels.Everything())
	if err != nil {
		utilruntime.HandleError(err)
		return
	}
	uids := make(map[string]types.UID, len(namespaces))
	for _, namespace := range namespaces {
		uids[namespace.Name] = namespace.UID
	}
	p.catalog.SetNamespaces(uids)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.namespaces = uids
	p.moveLocked(func(*enginev1alpha1.BackupRun) bool { return true })
}

func (p *Projector) namespaceChanged(obj any) {
	if namespace, ok := obj.(*corev1.Namespace); ok {
		p.setNamespace(namespace.Name, namespace.UID)
	}
}

func (p *Projector) namespaceGone(obj any) {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	if namespace, ok := obj.(*corev1.Namespace); ok {
		p.setNamespace(namespace.Name, "")
	}
}

// setNamespace takes note that a namespace has a uid, or is gone without one.
func (p *Projector) setNamespace(name string, uid types.UID) {
	p.placing.Lock()
	defer p.placing.Unlock()
	p.catalog.SetNamespace(name, uid) // which passes on what it changes
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.namespaces[name] == uid:
		return
	case uid == "":
		delete(p.namespaces, name)
	default:
		p.namespaces[name] = uid
	}
	p.moveLocked(func(run *enginev1alpha1.BackupRun) bool { return run.Spec.BackupRef.Namespace == name })
	p.wake()
}

// moveLocked shows the backups of runs where they belong now.
func (p *Projector) moveLocked(concerned func(*enginev1alpha1.BackupRun) bool) {
	moved := map[backupKey]*enginev1alpha1.BackupRun{}
	for key, run := range p.runs {
		if concerned(run) && p.keyOfLocked(run) != key {
			moved[key] = run
		}
	}
	for key, run := range moved {
		delete(p.runs, key)
		if u, ok := p.unread[key]; ok && u.run.UID == run.UID {
			delete(p.unread, key)
			p.unread[p.keyOfLocked(run)] = u
		}
		p.projectLocked(key)
	}
	for _, run := range moved {
		key := p.keyOfLocked(run)
		p.runs[key] = run
		p.projectLocked(key)
	}
}
