// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package projection

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/tools/cache"

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

// placeByNamespaces tells the catalogue which namespaces exist. Each change is passed on
// after that.
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
}

func (p *Projector) namespaceChanged(obj any) {
	if namespace, ok := obj.(*corev1.Namespace); ok {
		p.placing.Lock()
		defer p.placing.Unlock()
		p.catalog.SetNamespace(namespace.Name, namespace.UID)
	}
}

func (p *Projector) namespaceGone(obj any) {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	if namespace, ok := obj.(*corev1.Namespace); ok {
		p.placing.Lock()
		defer p.placing.Unlock()
		p.catalog.SetNamespace(namespace.Name, "")
	}
}
