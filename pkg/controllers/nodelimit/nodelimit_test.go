// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package nodelimit

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"

	"github.com/holdfast-io/holdfast/pkg/loadconcurrency"
)

// TestFollowsChanges: each change of the ConfigMap or the node sets the limit at once,
// and a mistake is told once and changes nothing.
func TestFollowsChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		kube := kubefake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", Labels: map[string]string{"size": "big"}}})
		factory := informers.NewSharedInformerFactory(kube, 0)
		recorder := events.NewFakeRecorder(10)
		var limits []int
		c, err := New(Config{
			ConfigMaps: factory.Core().V1().ConfigMaps().Informer(),
			Nodes:      factory.Core().V1().Nodes().Informer(),
			SetLimit:   func(limit int) { limits = append(limits, limit) },
			Most:       6,
			Events:     recorder,
		})
		if err != nil {
			t.Fatal(err)
		}
		var running sync.WaitGroup
		running.Go(func() { c.Run(ctx) })
		synctest.Wait()
		if len(limits) > 0 {
			t.Errorf("limits %v before anything is known", limits)
		}
		factory.Start(ctx.Done())
		time.Sleep(time.Second) // by which the informers have synced
		synctest.Wait()

		configMaps := kube.CoreV1().ConfigMaps("holdfast")
		version := 0
		write := func(write func(context.Context, *corev1.ConfigMap) error, text string) {
			t.Helper()
			version++
			if err := write(ctx, &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Namespace: "holdfast", Name: "agents", ResourceVersion: string(rune('0' + version))},
				Data:       map[string]string{"config.json": text},
			}); err != nil {
				t.Fatal(err)
			}
		}
		create := func(ctx context.Context, configMap *corev1.ConfigMap) error {
			_, err := configMaps.Create(ctx, configMap, metav1.CreateOptions{})
			return err
		}
		update := func(ctx context.Context, configMap *corev1.ConfigMap) error {
			_, err := configMaps.Update(ctx, configMap, metav1.UpdateOptions{})
			return err
		}
		label := func(size string) {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", Labels: map[string]string{"size": size}}}
			if _, err := kube.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		const rules = `"perNodeConfig": [{"nodeSelector": {"matchLabels": {"size": "big"}}, "number": 5}]`
		for _, step := range []struct {
			name    string
			do      func()
			limit   int
			source  string
			problem string
		}{
			{"start", func() {}, 1, "default", ""},
			{"a ConfigMap", func() { write(create, `{"loadConcurrency": {"globalConfig": 2}}`) }, 2, "globalConfig", ""},
			{"a rule", func() { write(update, `{"loadConcurrency": {"globalConfig": 2, `+rules+`}}`) }, 5, "perNodeConfig[0]", ""},
			{"a label", func() { label("small") }, 2, "globalConfig", ""},
			{"a mistake", func() { write(update, `{"loadConcurrency": {"globalConfig": 0, `+rules+`}}`) }, 2, "globalConfig", "globalConfig: must be"},
			{"a label back", func() { label("big") }, 5, "perNodeConfig[0]", "globalConfig: must be"},
			{"mended", func() { write(update, `{"loadConcurrency": {"globalConfig": 3}}`) }, 3, "globalConfig", ""},
			{"more than the memory allows", func() { write(update, `{"loadConcurrency": {"globalConfig": 7}}`) }, 6, "memory", ""},
			{"as much as it allows", func() { write(update, `{"loadConcurrency": {"globalConfig": 6}}`) }, 6, "globalConfig", ""},
			{"no ConfigMap", func() { _ = configMaps.Delete(ctx, "agents", metav1.DeleteOptions{}) }, 1, "default", ""},
		} {
			step.do()
			synctest.Wait()
			state := c.State()
			if state.Limit != step.limit || state.Source != step.source || !strings.HasPrefix(state.Problem, step.problem) || (state.Problem == "") != (step.problem == "") {
				t.Errorf("%s: %+v, want %d by %s and the problem %q", step.name, state, step.limit, step.source, step.problem)
			}
			if limits[len(limits)-1] != step.limit {
				t.Errorf("%s: the manager's limits were %v", step.name, limits)
			}
		}
		if told := len(recorder.Events); told != 1 {
			t.Errorf("%d events, want one of the one mistake", told)
		}
		cancel()
		running.Wait()
		factory.Shutdown()
	})
}

// TestWithoutConfigMap: where none is named, one volume at a time moves.
func TestWithoutConfigMap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		factory := informers.NewSharedInformerFactory(kubefake.NewClientset(), 0)
		limit := 0
		c, err := New(Config{Nodes: factory.Core().V1().Nodes().Informer(), SetLimit: func(n int) { limit = n }})
		if err != nil {
			t.Fatal(err)
		}
		factory.Start(ctx.Done())
		var running sync.WaitGroup
		running.Go(func() { c.Run(ctx) })
		time.Sleep(time.Second)
		synctest.Wait()
		if limit != 1 {
			t.Errorf("the limit is %d", limit)
		}
		cancel()
		running.Wait()
		factory.Shutdown()
	})
}

// TestWithoutRights: an agent that may not read its ConfigMap moves volumes all the same,
// and follows it as soon as it may.
func TestWithoutRights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		kube := kubefake.NewClientset(&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "holdfast", Name: "agents", ResourceVersion: "1"},
			Data:       map[string]string{"config.json": `{"loadConcurrency": {"globalConfig": 4}}`},
		})
		factory, later := informers.NewSharedInformerFactory(kube, 0), informers.NewSharedInformerFactory(kube, 0)
		limit := 0
		c, err := New(Config{
			ConfigMaps: later.Core().V1().ConfigMaps().Informer(), Nodes: factory.Core().V1().Nodes().Informer(),
			SetLimit: func(n int) { limit = n },
		})
		if err != nil {
			t.Fatal(err)
		}
		factory.Start(ctx.Done())
		var running sync.WaitGroup
		running.Go(func() { c.Run(ctx) })
		time.Sleep(syncTimeout + time.Second)
		synctest.Wait()
		if limit != 1 || !strings.Contains(c.State().Problem, "can't be read") {
			t.Errorf("without the ConfigMap the limit is %d: %+v", limit, c.State())
		}
		later.Start(ctx.Done())
		time.Sleep(time.Second)
		synctest.Wait()
		if want := (loadconcurrency.Decision{Limit: 4, Source: "globalConfig"}); limit != 4 || c.State() != want {
			t.Errorf("with the ConfigMap the limit is %d: %+v", limit, c.State())
		}
		cancel()
		running.Wait()
		factory.Shutdown()
		later.Shutdown()
	})
}
