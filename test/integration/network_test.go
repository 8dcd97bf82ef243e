// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

var badNetworkStays = flag.Bool("integration.bad-network-stays", false, "whether TestBadNetwork also waits until the agent gives up by itself, which takes minutes")

// What a network does to the connections with a store, besides taking none.
var (
	late      = []labtest.Toxic{{Type: "latency", Stream: "downstream", Attributes: map[string]int{"latency": 200, "jitter": 100}}, {Type: "latency", Stream: "upstream", Attributes: map[string]int{"latency": 200}}}
	broken    = []labtest.Toxic{{Type: "reset_peer", Stream: "downstream", Attributes: map[string]int{"timeout": 0}}}
	cut       = []labtest.Toxic{{Type: "limit_data", Stream: "upstream", Attributes: map[string]int{"bytes": 100_000}}, {Type: "limit_data", Stream: "downstream", Attributes: map[string]int{"bytes": 100_000}}}
	lingering = []labtest.Toxic{{Type: "slow_close", Stream: "downstream", Attributes: map[string]int{"delay": 500}}}
	blackHole = []labtest.Toxic{{Type: "timeout", Stream: "downstream", Attributes: map[string]int{"timeout": 0}}, {Type: "timeout", Stream: "upstream", Attributes: map[string]int{"timeout": 0}}}
)

// narrow lets so many kilobytes a second through each connection.
func narrow(rate int) labtest.Toxic {
	return labtest.Toxic{Type: "bandwidth", Stream: "downstream", Attributes: map[string]int{"rate": rate}}
}

// distant is a volume whose store is behind a bad network.
type distant struct {
	proxy    *labtest.Toxiproxy
	location string
	volume   *struckVolume
	before   map[string]string // its files
}

// TestBadNetwork puts Toxiproxy between Holdfast and its store, in the middle of an upload
// and of a restore: what passes costs no attempt, and what is reported done is; what stays is
// ended by a cancellation within seconds, and the next work begins.
func TestBadNetwork(t *testing.T) {
	d := newDistant(t)
	bulk(t, d.volume.folder, 40<<20)
	d.before = tree(t, d.volume.folder)

	t.Log("an upload, and what passes")
	slow := narrow(4 << 10)
	slow.Stream = "upstream"
	wide := d.proxy.Add(t, slow)
	upload := d.upload(t)
	d.endure(t, upload.get)
	wide()
	uploaded := upload.await(t, enginev1alpha1.VolumePhaseCompleted)
	if uploaded.attempts != 1 {
		t.Errorf("it took %d attempts", uploaded.attempts)
	}

	t.Log("a restore, and what passes")
	empty(t, d.volume.folder)
	wide = d.proxy.Add(t, narrow(400))
	restored := d.restore(t, uploaded.snapshot)
	d.endure(t, restored.get)
	wide()
	if s := restored.await(t, enginev1alpha1.VolumePhaseCompleted); s.attempts != 1 {
		t.Errorf("it took %d attempts", s.attempts)
	}
	if diff := cmp.Diff(d.before, tree(t, d.volume.folder)); diff != "" {
		t.Errorf("what came back differs (-before +after):\n%s", diff)
	}

	t.Log("what stays")
	for name, begin := range map[string]func() *volumeWork{
		"an upload": func() *volumeWork {
			bulk(t, d.volume.folder, 40<<20)
			return d.upload(t)
		},
		"a restore": func() *volumeWork { return d.restore(t, uploaded.snapshot) },
	} {
		for how, toxics := range map[string][]labtest.Toxic{"says nothing": blackHole, "takes no connection": nil} {
			slow.Attributes["rate"] = 1 << 10
			wide := d.proxy.Add(t, narrow(100), slow)
			work := begin()
			work.await(t, enginev1alpha1.VolumePhaseInProgress)
			time.Sleep(time.Second) // the middle
			var over func()
			if toxics == nil {
				over = d.proxy.Down(t)
			} else {
				over = d.proxy.Add(t, toxics...)
			}
			began := time.Now()
			if *badNetworkStays {
				gaveUp := work.awaitFor(t, 15*time.Minute, enginev1alpha1.VolumePhaseFailed)
				t.Logf("%s of a store that %s failed after %s: %s", name, how, time.Since(began), gaveUp.message)
			} else {
				work.cancel(t)
				s := work.await(t, enginev1alpha1.VolumePhaseFailed)
				if took := time.Since(began); took > time.Minute || s.message != "it was cancelled" {
					t.Errorf("%s of a store that %s ended %s after its cancellation: %s", name, how, took, s.message)
				}
			}
			// The slot is free for those of another store, whatever this one does.
			other := labtest.Name("other")
			lab.Create(t, labtest.System, other, v1alpha1.BackupSpec{IncludedNamespaces: []string{d.volume.namespace}, DefaultVolumesToFsBackup: new(true)})
			lab.AwaitCompleted(t, other)
			over()
			wide()
			if work.backup == "" {
				continue
			}
			if n := snapshotsAt(t, d.location, d.volume.namespace, work.backup); n != 0 {
				t.Errorf("%s that was cancelled has left %d snapshots", name, n)
			}
		}
	}
	lab.AwaitAvailable(t, d.location, metav1.ConditionTrue)
	again := d.upload(t)
	again.await(t, enginev1alpha1.VolumePhaseCompleted)
}

func newDistant(t *testing.T) *distant {
	t.Helper()
	server := lab.S3(t)
	d := &distant{location: labtest.Name("distant")}
	if err := os.Mkdir(filepath.Join(server.Buckets, d.location), 0o755); err != nil {
		t.Fatal(err)
	}
	d.proxy = lab.Toxiproxy(t, strings.TrimPrefix(server.Endpoint, "http://"))
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: d.location}, Data: map[string][]byte{
		store.SecretAccessKeyID: []byte(server.AccessKeyID), store.SecretSecretAccessKey: []byte(server.SecretAccessKey),
	}}
	if _, err := lab.Kube.CoreV1().Secrets(enginev1alpha1.CredentialsNamespace(labtest.System)).Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	locations := lab.Engine.EngineV1alpha1().StorageLocations(labtest.System)
	if _, err := locations.Create(t.Context(), &enginev1alpha1.StorageLocation{
		ObjectMeta: metav1.ObjectMeta{Name: d.location},
		Spec: enginev1alpha1.StorageLocationSpec{
			AllowedNamespaces: &enginev1alpha1.AllowedNamespaces{Names: []string{"*"}},
			Provider:          enginev1alpha1.StorageProviderS3,
			S3:                &enginev1alpha1.S3Location{Bucket: d.location, Endpoint: "http://" + d.proxy.Address, ForcePathStyle: true, CredentialsSecret: d.location},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := locations.Delete(context.Background(), d.location, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	lab.AwaitAvailable(t, d.location, metav1.ConditionTrue)

	namespace := lab.Namespace(t, "distant")
	pod, folder := lab.PodWithClaim(t, namespace, labtest.Node)
	d.volume = &struckVolume{namespace: namespace, pod: pod, folder: folder}
	// The repository is made for a backup.
	first := labtest.Name("first")
	lab.Create(t, labtest.System, first, v1alpha1.BackupSpec{IncludedNamespaces: []string{namespace}, StorageLocation: d.location, DefaultVolumesToFsBackup: new(true)})
	lab.AwaitCompleted(t, first)
	return d
}

// endure goes through all that a network does and ceases to do, while some work is in
// progress.
func (d *distant) endure(t *testing.T, get func(context.Context) (sighting, error)) {
	t.Helper()
	for _, weather := range []struct {
		name   string
		toxics []labtest.Toxic
	}{{"late", late}, {"broken", broken}, {"cut", cut}, {"lingering", lingering}, {"a black hole", blackHole}, {"away", nil}} {
		var over func()
		if weather.toxics == nil {
			over = d.proxy.Down(t)
		} else {
			over = d.proxy.Add(t, weather.toxics...)
		}
		time.Sleep(500 * time.Millisecond) // as long is it bad
		now, err := get(t.Context())
		if err != nil || now.phase != enginev1alpha1.VolumePhaseInProgress {
			t.Errorf("while the network was %s, the work was %+v, %v", weather.name, now, err)
		}
		over()
		time.Sleep(200 * time.Millisecond)
	}
}

// volumeWork is a VolumeUpload or VolumeRestore that the test has asked for.
type volumeWork struct {
	name   string
	backup types.UID
	get    func(context.Context) (sighting, error)
	cancel func(*testing.T)
}

func (w *volumeWork) await(t *testing.T, phase enginev1alpha1.VolumePhase) sighting {
	t.Helper()
	return w.awaitFor(t, 0, phase)
}

// awaitFor is like await, for longer than tests wait.
func (w *volumeWork) awaitFor(t *testing.T, longer time.Duration, phase enginev1alpha1.VolumePhase) (now sighting) {
	t.Helper()
	until := time.Now().Add(longer)
	reached := func() (err error) {
		now, err = w.get(t.Context())
		switch {
		case err != nil || now.phase == phase:
			return err
		case now.phase.Done():
			t.Fatalf("%s has ended: %+v", w.name, now)
		}
		return fmt.Errorf("it is %+v", now)
	}
	for longer > 0 && reached() != nil && time.Now().Before(until) {
		time.Sleep(time.Second)
	}
	labtest.Eventually(t, fmt.Sprintf("%s to be %s", w.name, phase), reached)
	return now
}

func (d *distant) upload(t *testing.T) *volumeWork {
	t.Helper()
	uploads := lab.Engine.EngineV1alpha1().VolumeUploads(labtest.System)
	name := labtest.Name("upload")
	pod := d.volume.pod
	if _, err := uploads.Create(t.Context(), &enginev1alpha1.VolumeUpload{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{enginev1alpha1.LabelNode: pod.Spec.NodeName, enginev1alpha1.LabelRun: name}},
		Spec: enginev1alpha1.VolumeUploadSpec{
			Node:                  pod.Spec.NodeName,
			Pod:                   enginev1alpha1.PodReference{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
			Volume:                pod.Spec.Volumes[0].Name,
			ClaimName:             "data",
			PersistentVolume:      d.volume.persistentVolume(),
			BackupStorageLocation: d.location,
			Repository:            enginev1alpha1.RepositoryName(pod.Namespace, d.location),
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return &volumeWork{
		name:   name,
		backup: types.UID(name),
		get: func(ctx context.Context) (sighting, error) {
			record, err := uploads.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return sighting{}, err
			}
			return sightingOfUpload(record), nil
		},
		cancel: func(t *testing.T) { cancelWork(t, "volumeuploads", name) },
	}
}

func (d *distant) restore(t *testing.T, snapshot string) *volumeWork {
	t.Helper()
	name := createRestore(t, d.location, d.volume.pod, d.volume.persistentVolume(), snapshot).Name
	return &volumeWork{
		name: name,
		get: func(ctx context.Context) (sighting, error) {
			record, err := lab.Engine.EngineV1alpha1().VolumeRestores(labtest.System).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return sighting{}, err
			}
			return sightingOfRestore(record), nil
		},
		cancel: func(t *testing.T) { cancelWork(t, "volumerestores", name) },
	}
}

// cancelWork is what an operator may do with kubectl; it can't be taken back.
func cancelWork(t *testing.T, resource, name string) {
	t.Helper()
	patch := func(spec string) []string {
		return []string{"patch", resource, name, "-n", labtest.System, "--type=merge", "-p", `{"spec":` + spec + `}`}
	}
	lab.Kubectl(t, patch(`{"cancel":true}`)...)
	lab.Refused(t, "", patch(`{"cancel":null}`), "a cancellation is not taken back")
	lab.Refused(t, "", patch(`{"volume":"another"}`), "does not change")
}
