// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package logstore_test

import (
	"context"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/holdfast-io/holdfast/pkg/registry/logstore"
)

func manyPods(n int, node string) []*example.Pod {
	pods := make([]*example.Pod, n)
	for i := range pods {
		pods[i] = pod(fmt.Sprintf("namespace-%d", i%100), fmt.Sprintf("pod-%d", i), node)
	}
	return pods
}

func logOf(b *testing.B, n int) *podLog {
	b.Helper()
	l := newPodLog(logstore.Options{})
	if _, err := l.Replace(manyPods(n, "n")); err != nil {
		b.Fatal(err)
	}
	return l
}

func BenchmarkCommit(b *testing.B) {
	l := logOf(b, 10_000)
	nodes := [2][]*example.Pod{manyPods(10_000, "1"), manyPods(10_000, "2")}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if n, err := l.Apply(nodes[i/10_000%2][i%10_000]); n != 1 || err != nil {
			b.Fatal(n, err)
		}
	}
}

func BenchmarkReplaceBySame10k(b *testing.B) {
	l := logOf(b, 10_000)
	pods := manyPods(10_000, "n")
	b.ReportAllocs()
	for b.Loop() {
		if n, err := l.Replace(pods); n != 0 || err != nil {
			b.Fatal(n, err)
		}
	}
}

func BenchmarkList10k(b *testing.B) {
	l := logOf(b, 10_000)
	past := storage.ListOptions{Predicate: limit(500, ""), ResourceVersion: format(currentVersion(b, l)), ResourceVersionMatch: metav1.ResourceVersionMatchExact}
	if _, err := l.Replace(manyPods(10_000, "other")); err != nil {
		b.Fatal(err)
	}
	for name, opts := range map[string]storage.ListOptions{
		"all":                        {Predicate: storage.Everything},
		"page of 500":                {Predicate: limit(500, "")},
		"page of 10k events earlier": past,
		"selected: nothing":          {Predicate: onNode("none")},
	} {
		b.Run(name, func(b *testing.B) {
			opts.Recursive = true
			b.ReportAllocs()
			for b.Loop() {
				if err := l.GetList(context.Background(), "/pods/", opts, &example.PodList{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkFanOut commits an event and waits until every watcher has it.
func BenchmarkFanOut(b *testing.B) {
	for _, watchers := range []int{1, 100} {
		b.Run(fmt.Sprintf("to %d watchers", watchers), func(b *testing.B) {
			l := logOf(b, 1000)
			received := make(chan struct{}, watchers)
			for range watchers {
				w := watchFrom(b, l, "/pods/", storage.ListOptions{ResourceVersion: format(currentVersion(b, l))})
				go func() {
					for e := range w.ResultChan() {
						if e.Type == watch.Error {
							b.Errorf("a watcher fell off the log: %v", e.Object)
						}
						received <- struct{}{}
					}
				}()
			}
			nodes := [2]*example.Pod{pod("a", "p", "1"), pod("a", "p", "2")}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				apply(b, l, nodes[i%2])
				for range watchers {
					<-received
				}
			}
		})
	}
}
