// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package logstore_test

import (
	"fmt"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/example"

	"github.com/holdfast-io/holdfast/pkg/registry/logstore"
)

type podLog = logstore.Log[*example.Pod]

func newPod() *example.Pod { return &example.Pod{} }

// newPodLog returns a log of pods that is ready, with keys below /pods/.
func newPodLog(options logstore.Options) *podLog {
	l := loadingPodLog(options)
	l.SetReady()
	return l
}

func loadingPodLog(options logstore.Options) *podLog {
	options.Resource = schema.GroupResource{Resource: "pods"}
	options.Namespaced = true
	return logstore.New(newPod, options)
}

func podAttrs(obj runtime.Object) (labels.Set, fields.Set, error) {
	p, ok := obj.(*example.Pod)
	if !ok {
		return nil, nil, fmt.Errorf("not a pod: %T", obj)
	}
	return p.Labels, fields.Set{"metadata.name": p.Name, "metadata.namespace": p.Namespace, "spec.nodeName": p.Spec.NodeName}, nil
}
