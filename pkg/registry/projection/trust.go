// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package projection

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	clusteridentity "github.com/holdfast-io/holdfast/pkg/identity"
)

func (p *Projector) identify() {
	var published *corev1.ConfigMap
	for _, obj := range p.Identity.GetStore().List() {
		published = obj.(*corev1.ConfigMap)
	}
	p.stores.catalog.SetIdentity(clusteridentity.Of(published))
	p.setSuccessions(clusteridentity.SuccessionsOf(published))
}

func (p *Projector) setSuccessions(successions clusteridentity.Successions) {
	p.placing.Lock()
	defer p.placing.Unlock()
	p.stores.catalog.SetSuccessions(successions)
	if p.stores.past != nil {
		p.stores.past.SetSuccessions(successions)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.runs.successions = successions
	p.moveLocked()
	p.queue.wake()
}

func (p *Projector) judgeAgain(namespace string) {
	if p.stores.past != nil {
		p.stores.past.JudgeAgain(namespace)
	}
}

// placeByNamespaces places everything by the existing namespaces.
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
	p.stores.catalog.SetNamespaces(uids)
	p.judgeAgain("")
	p.mu.Lock()
	defer p.mu.Unlock()
	p.runs.namespaces = uids
	p.moveLocked()
}

func (p *Projector) namespaceChanged(namespace *corev1.Namespace) {
	p.setNamespace(namespace.Name, namespace.UID)
}

func (p *Projector) namespaceGone(namespace *corev1.Namespace) { p.setNamespace(namespace.Name, "") }

// setNamespace sets a namespace's uid, "" if deleted.
func (p *Projector) setNamespace(name string, uid types.UID) {
	p.placing.Lock()
	defer p.placing.Unlock()
	p.stores.catalog.SetNamespace(name, uid)
	p.judgeAgain(name)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.runs.setNamespace(name, uid) {
		p.moveLocked()
		p.queue.wake()
	}
}

func (p *Projector) moveLocked() {
	for _, key := range p.runs.move() {
		p.projectLocked(key)
	}
}
