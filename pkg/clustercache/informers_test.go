// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package clustercache

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

func TestWhatIsKept(t *testing.T) {
	full := metav1.ObjectMeta{
		Name: "n", UID: "u", ResourceVersion: "7", Labels: map[string]string{"a": "b"},
		Annotations: map[string]string{"large": "..."}, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}},
	}
	trimmed := full
	trimmed.ManagedFields = nil
	which := metav1.ObjectMeta{Name: "n", UID: "u", ResourceVersion: "7", Labels: map[string]string{"a": "b"}}
	namespace := corev1.Namespace{ObjectMeta: full, Spec: corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{"kubernetes"}}}
	for name, c := range map[string]struct {
		transform cache.TransformFunc
		obj, want any
	}{
		"trimmed":   {Trimmed, namespace.DeepCopy(), &corev1.Namespace{ObjectMeta: trimmed, Spec: namespace.Spec}},
		"namespace": {Named, namespace.DeepCopy(), &corev1.Namespace{ObjectMeta: which}},
		"metadata":  {Named, &metav1.PartialObjectMetadata{ObjectMeta: full}, &metav1.PartialObjectMetadata{ObjectMeta: which}},
		"gone":      {Trimmed, cache.DeletedFinalStateUnknown{Key: "n"}, cache.DeletedFinalStateUnknown{Key: "n"}},
	} {
		for range 2 { // what is kept is kept again
			got, err := c.transform(c.obj)
			if diff := cmp.Diff(c.want, got); diff != "" || err != nil {
				t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
			}
			c.obj = got
		}
	}
}
