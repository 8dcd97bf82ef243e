// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package object_test

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/restore/object"
	"github.com/holdfast-io/holdfast/pkg/restore/source"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// Proof 7: of the objects of a real cluster, as Velero has stored them, none that is still
// there as it was would be written.
func TestNothingIsWrittenOfWhatIsThere(t *testing.T) {
	file, err := os.Open("../source/testdata/velero-store.tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	bucket := storetest.Memory(t)
	compressed, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	for entries := tar.NewReader(compressed); ; {
		header, err := entries.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if header.Typeflag != tar.TypeReg || !strings.Contains(header.Name, "backups/") {
			continue
		}
		data, err := io.ReadAll(entries)
		if err != nil {
			t.Fatal(err)
		}
		if err := bucket.Put(t.Context(), strings.TrimPrefix(header.Name, "./"), data); err != nil {
			t.Fatal(err)
		}
	}
	backup, err := source.Open(t.Context(), bucket, format.Place{StoreName: "v-shop", Location: "main", SystemNamespace: "holdfast", Now: time.Now()}, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	restored := map[types.UID]bool{}
	for _, item := range backup.Items {
		restored[types.UID(item.UID)] = true
	}
	rules, err := object.NewRules(&v1alpha1.RestoreSpec{}, nil, object.Facts{
		RestoreUID: "restore", Restored: func(uid types.UID) bool { return restored[uid] }, KeepsVolume: func(string, string) bool { return true },
	})
	if err != nil {
		t.Fatal(err)
	}
	skipped := map[string]int{}
	for o, err := range backup.ObjectsOf(t.Context(), backup.Items) {
		if err != nil {
			t.Fatal(err)
		}
		resource := schema.GroupResource{Group: o.Item.APIGroup, Resource: o.Item.Resource}
		if object.SkipItem(o.Item) != "" || rules.Skip(o.Content, resource) != "" {
			skipped[o.Item.KindName]++
			continue
		}
		live := o.Content.DeepCopy()
		desired, _, err := rules.Desired(t.Context(), o.Content, resource, func(owner metav1.OwnerReference) (types.UID, bool) { return owner.UID, restored[owner.UID] })
		if err != nil {
			t.Fatalf("%s: %v", o.Item, err)
		}
		if d := object.Compare(live, desired, nil, v1alpha1.ExistingResourceUpdate); d.Action != object.Equal {
			t.Errorf("%s %s differs in %q, and has besides %q", o.Item.KindName, o.Item.Name, d.Differs, d.Besides)
		}
	}
	t.Logf("not restored: %v", skipped)
	if skipped["Pod"] == 0 || skipped["EndpointSlice"] == 0 || skipped["ReplicaSet"] == 0 || skipped["Lease"] == 0 || skipped["Deployment"] > 0 || skipped["StatefulSet"] > 0 {
		t.Errorf("not restored: %v", skipped)
	}
}
