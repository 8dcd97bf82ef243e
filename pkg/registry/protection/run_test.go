// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package protection

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/metadata/fake"
	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// TestKeepsUp: a Publisher that runs learns of objects that come and go, and of backups, and reads
// their manifests by itself.
func TestKeepsUp(t *testing.T) {
	w := newWorld(t, storetest.Memory(t))
	w.namespace("shop", "1000000h")
	scheme := fake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	data := &thing{kind: "PersistentVolumeClaim", namespace: "shop", name: "data", uid: "data", created: -9}
	claim := &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "data", UID: "data", CreationTimestamp: metav1.NewTime(hour(-9))},
	}
	client := fake.NewSimpleMetadataClient(scheme, claim)
	config := w.Config
	config.Metadata, config.Clock = client, clock.RealClock{}
	w.Publisher = New(config)

	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan struct{})
	go func() {
		defer close(ran)
		w.Run(ctx)
	}()
	defer func() {
		stop()
		<-ran
	}()
	await := func(want v1alpha1.ProtectionState) {
		t.Helper()
		var last string
		if err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
			list, err := NewREST(w.Publisher).List(ctx, nil)
			if err != nil {
				last = err.Error()
				return false, nil
			}
			items := list.(*v1alpha1.ProtectionList).Items
			if len(items) > 0 {
				last = string(items[0].Status.Protected)
			}
			return len(items) == 0 && want == "" || len(items) == 1 && items[0].Status.Protected == want, nil
		}); err != nil {
			t.Fatalf("it is %s, not %q", last, want)
		}
	}
	await(v1alpha1.ProtectionNone)
	w.put(&made{storeName: "all", namespace: system, start: -5, phase: v1alpha1.BackupPhaseCompleted, own: true, volumes: []catalog.Volume{volumeOf(data, v1alpha1.VolumeBackupCompleted, -5)}},
		[]*manifest.Item{itemOf(data, nil)}, "")
	await(v1alpha1.ProtectionYes)
	w.OnBackup(types.NamespacedName{Namespace: system, Name: "all"}, nil)
	await(v1alpha1.ProtectionNone)
	if err := client.Resource(kinds[len(kinds)-1].resource).Namespace("shop").Delete(t.Context(), "data", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await("")
}
