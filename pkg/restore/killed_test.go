// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/restore/source"
)

// zoo is a backup of whatever takes a restore more than one request: a circle of owners, a chain
// of them, a kind of its own, a claim with its data, and a pod that uses it.
func zoo(t *testing.T) (*source.Backup, []map[string]any) {
	t.Helper()
	a := obj("v1", "ConfigMap", "a", "a")
	b := obj("v1", "ConfigMap", "a", "b", ownedBy(a))
	ownedBy(b)(a)
	c := obj("v1", "Secret", "a", "c", ownedBy(b))
	w := obj("example.com/v1", "Widget", "a", "w", ownedBy(c))
	pod := obj("v1", "Pod", "a", "p", with([]any{map[string]any{"name": "v", "persistentVolumeClaim": map[string]any{"claimName": "data"}}}, "spec", "volumes"))
	objects := []map[string]any{obj("v1", "Namespace", "", "a"), definition("example.com", "Widget"), a, b, c, w, obj("v1", "PersistentVolumeClaim", "a", "data"), pod}
	backup := backupOf(t, objects...)
	backup.Volumes = claimWithPod(t, "k-1").Volumes
	return backup, objects
}

// isThere checks that all of a zoo is there, was made once, and is owned by who is there.
func (d *disk) isThere(t *testing.T, what string, objects []map[string]any) {
	t.Helper()
	d.holds(t, "k-1", false)
	d.server.mu.Lock()
	for key, times := range d.server.created {
		if times != 1 {
			t.Errorf("%s: %s was created %d times", what, key, times)
		}
	}
	d.server.mu.Unlock()
	live := func(o *unstructured.Unstructured) *unstructured.Unstructured {
		resource := plural(o.GetKind())
		if group := o.GroupVersionKind().Group; group != "" {
			resource += "." + group
		}
		return d.server.get(resource, o.GetNamespace(), o.GetName())
	}
	byUID := map[string]*unstructured.Unstructured{}
	for _, object := range objects {
		o := &unstructured.Unstructured{Object: object}
		if byUID[string(o.GetUID())] = live(o); byUID[string(o.GetUID())] == nil {
			t.Fatalf("%s: %s %s is missing", what, o.GetKind(), o.GetName())
		}
	}
	for _, object := range objects {
		o := &unstructured.Unstructured{Object: object}
		owners := live(o).GetOwnerReferences()
		if len(owners) != len(o.GetOwnerReferences()) {
			t.Errorf("%s: %s is owned by %v", what, o.GetName(), owners)
			continue
		}
		for i, owner := range o.GetOwnerReferences() {
			if owners[i].UID != byUID[string(owner.UID)].GetUID() {
				t.Errorf("%s: %s is owned by %v", what, o.GetName(), owners)
			}
		}
	}
}

// TestKilledAtEveryRequest: whichever request of a process is its last, carried out or not, the
// next one ends the restore, and a second restore writes nothing. Proof 16.
func TestKilledAtEveryRequest(t *testing.T) {
	backup, objects := zoo(t)
	for _, carriedOut := range []bool{false, true} {
		for n := 1; ; n++ {
			d := newDisk(t)
			killed := d.killedAt(t, backup, "r1", n, carriedOut)
			what := fmt.Sprintf("killed at request %d, carried out: %t", n, carriedOut)
			want(t, d.run(t, t.Context(), backup, "r1", v1alpha1.RestoreSpec{}), v1alpha1.RestorePhaseCompleted)
			d.isThere(t, what, objects)
			d.server.writes = 0
			want(t, d.run(t, t.Context(), backup, "r2", v1alpha1.RestoreSpec{RestorePVs: new(false), ExistingResourcePolicy: v1alpha1.ExistingResourceUpdate}), v1alpha1.RestorePhaseCompleted)
			if d.server.writes > 0 {
				t.Errorf("%s: the second restore wrote %d times", what, d.server.writes)
			}
			d.server.server.Close()
			if !killed {
				t.Logf("%d requests", n-1)
				break
			}
		}
	}
}

// pause stops a process at its nth request, which is on its way then.
type pause struct {
	next http.RoundTripper

	mu     sync.Mutex
	left   int
	paused chan struct{} // closed when it is
	woken  chan struct{} // closed by who wakes it
	fenced bool
}

func (p *pause) RoundTrip(r *http.Request) (*http.Response, error) {
	p.mu.Lock()
	p.left--
	if p.left == 0 {
		close(p.paused)
	}
	asleep := p.left <= 0
	select {
	case <-p.woken:
		asleep = false
		if p.fenced { // what it had sent before arrives
			p.mu.Unlock()
			return nil, errors.New("its Lease has run out")
		}
	default:
	}
	p.mu.Unlock()
	if asleep {
		<-p.woken
	}
	return p.next.RoundTrip(r)
}

// TestTwoExecutors: a process that was paused at any request, while another one has ended the
// restore, does no harm when it goes on, be it to the end: nothing is made twice or changed. And
// what people have changed meanwhile stays, since it sends no more than was on its way: see
// lease.Fence.
func TestTwoExecutors(t *testing.T) {
	backup, objects := zoo(t)
	for _, fenced := range []bool{false, true} {
		for n := 1; ; n++ {
			what := fmt.Sprintf("paused at request %d, fenced: %t", n, fenced)
			d := newDisk(t)
			p := &pause{left: n, paused: make(chan struct{}), woken: make(chan struct{}), fenced: fenced}
			slow, err := rest.UnversionedRESTClientFor(&rest.Config{
				Host: d.server.server.URL, QPS: -1, ContentConfig: rest.ContentConfig{NegotiatedSerializer: scheme.Codecs.WithoutConversion()},
				WrapTransport: func(next http.RoundTripper) http.RoundTripper { p.next = broken{next}; return p },
			})
			if err != nil {
				t.Fatal(err)
			}
			spec := v1alpha1.RestoreSpec{ExistingResourcePolicy: v1alpha1.ExistingResourceUpdate}
			ctx, stop := context.WithCancel(t.Context())
			first := make(chan *Ended, 1)
			own := *backup // each process reads it for itself
			go func() {
				first <- d.server.run(ctx, &own, request("r1", spec), func(deps *Dependencies) { deps.Volumes, deps.Writer, deps.Reader = d, slow, slow })
			}()
			var ended *Ended
			select {
			case <-p.paused:
			case ended = <-first:
			}
			want(t, d.run(t, t.Context(), backup, "r1", spec), v1alpha1.RestorePhaseCompleted)
			d.isThere(t, what, objects)
			if fenced && ended == nil { // somebody changes what there is
				for _, name := range []string{"a", "b"} {
					o := d.server.get("configmaps", "a", name)
					_ = unstructured.SetNestedField(o.Object, "changed", "data", "n")
					d.server.add("configmaps", o.Object)
				}
			}
			d.server.mu.Lock()
			version := d.server.version
			d.server.mu.Unlock()
			close(p.woken)
			if ended == nil && !fenced {
				want(t, <-first, v1alpha1.RestorePhaseCompleted)
			} else if ended == nil {
				stop() // as it will be, within a moment
				<-first
			}
			stop()
			d.isThere(t, what, objects)
			if d.server.version != version {
				t.Errorf("%s: it has written when it went on", what)
			}
			d.server.server.Close()
			if ended != nil {
				break
			}
		}
	}
}

// TestTwoExecutorsAtOnce: nor when both work at once all the time, with faults.
func TestTwoExecutorsAtOnce(t *testing.T) {
	backup, objects := zoo(t)
	for seed := range uint64(20) {
		d := newDisk(t)
		random := rand.New(rand.NewPCG(seed, 0))
		d.server.fault = func(*http.Request) (int, bool) { // under the server's lock
			switch random.IntN(12) {
			case 0:
				return http.StatusTooManyRequests, false
			case 1:
				return -1, random.IntN(2) == 0
			}
			return 0, false
		}
		var both sync.WaitGroup
		for range 2 {
			own := *backup
			both.Go(func() {
				ended := d.server.run(t.Context(), &own, request("r1", v1alpha1.RestoreSpec{}), func(deps *Dependencies) { deps.Volumes = d })
				if ended.Status.Phase != v1alpha1.RestorePhaseCompleted {
					results, _ := told(t, ended)
					t.Errorf("seed %d: %+v %v", seed, ended.Status, results)
				}
			})
		}
		both.Wait()
		d.isThere(t, fmt.Sprintf("seed %d", seed), objects)
		d.server.server.Close()
	}
}
