// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package maintenance_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
	"github.com/holdfast-io/holdfast/pkg/lease"
	"github.com/holdfast-io/holdfast/pkg/maintenance"
	"github.com/holdfast-io/holdfast/pkg/repository"
)

const system = "holdfast"

// setUp is a cluster with the repository shop.default in a folder, and its key.
func setUp(t *testing.T) (*enginetest.Cluster, *maintenance.Maintainer) {
	t.Helper()
	location := &enginev1alpha1.StorageLocation{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "default"},
		Spec: enginev1alpha1.StorageLocationSpec{
			Provider: enginev1alpha1.StorageProviderFilesystem, Filesystem: &enginev1alpha1.FilesystemLocation{Path: t.TempDir()},
		},
	}
	cluster := enginetest.New(location)
	for _, namespace := range []string{"shop", "empty"} {
		cluster.Create(&enginev1alpha1.VolumeRepository{
			ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: enginev1alpha1.RepositoryName(namespace, "default")},
			Spec:       enginev1alpha1.VolumeRepositorySpec{VolumeNamespace: namespace, BackupStorageLocation: "default"},
		})
	}
	cluster.Create(&enginev1alpha1.VolumeRepository{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "shop.gone"},
		Spec:       enginev1alpha1.VolumeRepositorySpec{VolumeNamespace: "shop", BackupStorageLocation: "gone"},
	})
	key := repository.NewKey()
	if err := repository.Create(t.Context(), repository.Location{Spec: location.Spec}, "shop", key); err != nil {
		t.Fatal(err)
	}
	keys := cluster.Kube.CoreV1().Secrets(enginev1alpha1.KeysNamespace(system))
	if _, err := keys.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: enginev1alpha1.KeySecretName("shop.default")},
		Data:       map[string][]byte{enginev1alpha1.KeySecretKey: []byte(key)},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return cluster, &maintenance.Maintainer{
		Namespace: system, Identity: "job-1",
		Engine:  cluster.EngineV1alpha1(),
		Secrets: cluster.Kube.CoreV1().Secrets(enginev1alpha1.CredentialsNamespace(system)),
		Keys:    keys,
		Leases:  cluster.Kube.CoordinationV1().Leases(enginev1alpha1.MaintenanceNamespace(system)),
		Clock:   clock.RealClock{},
	}
}

// A maintenance costs two writes: its Lease is made and given back.
func TestMaintain(t *testing.T) {
	cluster, maintainer := setUp(t)
	for _, want := range []string{"full", "quick"} {
		before := len(cluster.Writes("leases"))
		result := maintainer.Maintain(t.Context(), "shop", "default")
		if result.Error != "" || result.Kind != want || result.Repository != "shop.default" || result.Cancelled || result.Ended.Before(result.Started) {
			t.Errorf("it says %s, want a %s one", result, want)
		}
		// On a machine that is very slow it is renewed meanwhile.
		if writes := len(cluster.Writes("leases")) - before; writes != 2 && result.Ended.Sub(result.Started) < 15*time.Second {
			t.Errorf("it costs %d writes", writes)
		}
	}
	if _, err := maintainer.Leases.Get(t.Context(), "shop.default", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("its Lease is still there: %v", err)
	}
}

func TestMaintainFails(t *testing.T) {
	cluster, maintainer := setUp(t)
	for _, c := range []struct {
		namespace, location string
		want                []string
	}{
		{"nowhere", "default", []string{"no VolumeRepository nowhere.default in holdfast", "--repo-name"}},
		{"shop", "gone", []string{`the storage location "gone" does not exist`}},
		{"empty", "default", []string{"there is no repository in the store"}},
	} {
		if result := maintainer.Maintain(t.Context(), c.namespace, c.location); !containsAll(result.Error, c.want) {
			t.Errorf("%s at %s: it says %q, want %q", c.namespace, c.location, result.Error, c.want)
		}
	}
	cluster.Fault(func(action clienttesting.Action) enginetest.Fault {
		if action.Matches("get", "volumerepositories") {
			return enginetest.Fault{Err: errors.New("no connection")}
		}
		return enginetest.Fault{}
	})
	if result := maintainer.Maintain(t.Context(), "shop", "default"); !containsAll(result.Error, []string{"reading VolumeRepository shop.default", "no connection"}) {
		t.Errorf("it says %q", result.Error)
	}
}

func TestMaintainIsCancelled(t *testing.T) {
	_, maintainer := setUp(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if result := maintainer.Maintain(ctx, "shop", "default"); !result.Cancelled || result.Error != "" {
		t.Errorf("it says %s", result)
	}
}

func TestMaintainIsExclusive(t *testing.T) {
	_, maintainer := setUp(t)
	err := lease.Exclusively(t.Context(), maintainer.Leases, "shop.default", "job-2", clock.RealClock{}, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if result := maintainer.Maintain(ctx, "shop", "default"); result.Kind != "" || !result.Cancelled {
			t.Errorf("it does not wait for the other one, but says %s", result)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func containsAll(text string, want []string) bool {
	for _, w := range want {
		if !strings.Contains(text, w) {
			return false
		}
	}
	return true
}

// What a process ends with fits into the status of its pod, whatever the errors are, and
// comes back from there.
func TestMessage(t *testing.T) {
	long := strings.Repeat("a \"quoted\" ünlucky path\n", 1000)
	good := maintenance.Result{Repository: "a.default", Kind: "full", Started: time.Now(), Ended: time.Now(), ReclaimedBytes: 1 << 50, RewrittenBytes: 1 << 50, ClockSkewSeconds: -299}
	bad := maintenance.Result{Repository: "b.default", Error: long}
	if got := maintenance.Message([]maintenance.Result{bad}); !strings.HasPrefix(long, got) || len(got) < 4000 || len(got) > 4096 {
		t.Errorf("a failure ends with %d bytes: %.50q", len(got), got)
	}
	if got := maintenance.Results(maintenance.Message([]maintenance.Result{good})); len(got) != 1 || got[0].String() != good.String() {
		t.Errorf("%s comes back as %s", good, got)
	}
	for count := 2; count <= 10; count++ {
		results := []maintenance.Result{good}
		for i := 1; i < count; i++ {
			bad.Repository = fmt.Sprintf("%s-%d.default", strings.Repeat("n", 60), i)
			results = append(results, bad)
		}
		message := maintenance.Message(results)
		got := maintenance.Results(message)
		if len(message) > 4096 || len(got) != count {
			t.Errorf("of %d results %d come back from %d bytes", count, len(got), len(message))
			continue
		}
		if failed := got[count-1]; failed.Repository != bad.Repository || !strings.HasPrefix(failed.Error, `a "quo`) {
			t.Errorf("a failure of %d comes back as %+v", count, failed)
		}
		if err := maintenance.Failed(got); err == nil || strings.Contains(err.Error(), "a.default") {
			t.Errorf("the error is %v", err)
		}
	}
	// One that fails has the room that the others do not need, whatever it is made of.
	for _, text := range []string{strings.Repeat("x", 5000), strings.Repeat("<&>", 2000), strings.Repeat("\x01", 5000)} {
		results := []maintenance.Result{{Repository: "c.default", Error: text}}
		for range 9 {
			results = append(results, good)
		}
		message := maintenance.Message(results)
		if got := maintenance.Results(message); len(message) > 4096 || len(got) != 10 || len(got[0].Error) < 200 {
			t.Errorf("%d results come back from %d bytes, the first with %d bytes", len(got), len(message), len(got[0].Error))
		}
	}
	// Where there is no room for errors, what failed has failed all the same.
	var crowded []maintenance.Result
	for i := range 10 {
		result := good
		result.Repository, result.Error = fmt.Sprintf("%s%d.default", strings.Repeat("n", 250), i), long
		crowded = append(crowded, result)
	}
	got := maintenance.Results(maintenance.Message(crowded))
	if len(got) < 5 {
		t.Errorf("%d results come back", len(got))
	}
	for _, result := range got {
		if result.Error == "" {
			t.Errorf("a failure comes back as %s", result)
		}
	}
	if got := maintenance.Results("panic: something\n{}\n{\"a\":"); len(got) != 0 {
		t.Errorf("it reads %v", got)
	}
}
