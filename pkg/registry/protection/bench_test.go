// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package protection

import (
	"encoding/json"
	"fmt"
	"runtime"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// BenchmarkPage lists a page of 500 of the protections of 5,000 workloads and 10,000 claims in 100
// namespaces, which one backup holds, with its JSON; a hundredth of them with -short.
func BenchmarkPage(b *testing.B) {
	workloads := 5000
	if testing.Short() {
		workloads /= 100
	}
	w := newWorld(b, storetest.Memory(b))
	uids := map[string]types.UID{system: "uid-of-holdfast"}
	var things []*thing
	for i := range 3 * workloads {
		o := &thing{
			kind: "PersistentVolumeClaim", namespace: fmt.Sprintf("team-%02d", i%100), name: fmt.Sprintf("object-%05d", i), uid: fmt.Sprintf("%08d-0000-4000-8000-000000000000", i),
			created: -9, is: map[string]string{"app.kubernetes.io/name": fmt.Sprint("app-", i%50), "app.kubernetes.io/managed-by": "Helm"},
		}
		if i < workloads {
			o.kind = "Deployment"
		}
		things, uids[o.namespace] = append(things, o), types.UID("uid-of-"+o.namespace)
	}
	for name := range uids {
		w.namespace(name, "")
	}
	w.catalog.SetNamespaces(uids)
	var items []*manifest.Item
	var volumes []catalog.Volume
	for _, o := range things {
		items = append(items, itemOf(o, o.is))
		if o.kind != "Deployment" {
			volumes = append(volumes, volumeOf(o, v1alpha1.VolumeBackupCompleted, -5))
		}
	}
	w.put(&made{storeName: "all", namespace: system, start: -5, phase: v1alpha1.BackupPhaseCompleted, own: true, volumes: volumes}, items, "")
	before := inUse()
	for _, o := range things {
		w.lives(o)
	}
	w.settle(10)
	kept := inUse() - before
	rest := NewREST(w.Publisher)
	for b.Loop() {
		list, err := rest.List(b.Context(), &internalversion.ListOptions{Limit: 500})
		if err != nil {
			b.Fatal(err)
		}
		page := list.(*v1alpha1.ProtectionList)
		if _, err := json.Marshal(page); err != nil || len(page.Items) < min(500, len(things)) {
			b.Fatalf("a page of %d: %v", len(page.Items), err)
		}
		for i := range page.Items {
			if of := page.Items[i].Status; of.Protected != v1alpha1.ProtectionYes {
				b.Fatalf("%s is %+v", page.Items[i].Name, of)
			}
		}
	}
	runtime.KeepAlive(things)
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/1000, "ms")
	b.ReportMetric(float64(kept)/1e6, "MB")
}

// inUse is how much of the heap is alive.
func inUse() int64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}
