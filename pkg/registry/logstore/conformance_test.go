// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package logstore_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/holdfast-io/holdfast/pkg/registry/logstore"
)

// suite is a log with the callbacks that the upstream suite asks for.
type suite struct {
	*logstore.Log[*example.Pod]
}

func (s suite) increase(context.Context, *testing.T) int64 { return int64(s.Advance()) }

// compact also moves the version on: etcd's own record of a compaction is a write.
func (s suite) compact(_ context.Context, t *testing.T, rv string) {
	t.Helper()
	n, err := s.Versioner().ParseResourceVersion(rv)
	if err != nil {
		t.Fatal(err)
	}
	s.Compact(n)
	s.Advance()
}

func noKeyCheck(context.Context, *testing.T, string) {}
func noCallCheck(*testing.T, uint64, uint64)         {}

// TestStorage runs every group of the upstream suite that applies to a storage
// without serialization, transformers and unsafe deletion.
func TestStorage(t *testing.T) {
	type group func(context.Context, *testing.T, suite)
	plain := func(f func(context.Context, *testing.T, storage.Interface)) group {
		return func(ctx context.Context, t *testing.T, s suite) { f(ctx, t, s) }
	}
	for name, run := range map[string]group{
		"Create": func(ctx context.Context, t *testing.T, s suite) {
			storagetesting.RunTestCreate(ctx, t, s, noKeyCheck)
		},
		"CreateWithTTL":                         plain(storagetesting.RunTestCreateWithTTL),
		"CreateWithKeyExist":                    plain(storagetesting.RunTestCreateWithKeyExist),
		"Get":                                   plain(storagetesting.RunTestGet),
		"UnconditionalDelete":                   plain(storagetesting.RunTestUnconditionalDelete),
		"ConditionalDelete":                     plain(storagetesting.RunTestConditionalDelete),
		"DeleteWithSuggestion":                  plain(storagetesting.RunTestDeleteWithSuggestion),
		"DeleteWithSuggestionAndConflict":       plain(storagetesting.RunTestDeleteWithSuggestionAndConflict),
		"DeleteWithConflict":                    plain(storagetesting.RunTestDeleteWithConflict),
		"DeleteWithSuggestionOfDeletedObject":   plain(storagetesting.RunTestDeleteWithSuggestionOfDeletedObject),
		"ValidateDeletionWithSuggestion":        plain(storagetesting.RunTestValidateDeletionWithSuggestion),
		"ValidateDeletionWithOnlySuggestion":    plain(storagetesting.RunTestValidateDeletionWithOnlySuggestionValid),
		"PreconditionalDeleteWithSuggestion":    plain(storagetesting.RunTestPreconditionalDeleteWithSuggestion),
		"PreconditionalDeleteOnlySuggestion":    plain(storagetesting.RunTestPreconditionalDeleteWithOnlySuggestionPass),
		"GetListRecursivePrefix":                plain(storagetesting.RunTestGetListRecursivePrefix),
		"ListPaging":                            plain(storagetesting.RunTestListPaging),
		"NamespaceScopedList":                   plain(storagetesting.RunTestNamespaceScopedList),
		"GuaranteedUpdateWithTTL":               plain(storagetesting.RunTestGuaranteedUpdateWithTTL),
		"GuaranteedUpdateWithConflict":          plain(storagetesting.RunTestGuaranteedUpdateWithConflict),
		"GuaranteedUpdateSuggestionAndConflict": plain(storagetesting.RunTestGuaranteedUpdateWithSuggestionAndConflict),
		"KeySchema":                             plain(storagetesting.RunTestKeySchema),
		"Watch":                                 plain(storagetesting.RunTestWatch),
		"WatchFromNonZero":                      plain(storagetesting.RunTestWatchFromNonZero),
		"DeleteTriggerWatch":                    plain(storagetesting.RunTestDeleteTriggerWatch),
		"DelayedWatchDelivery":                  plain(storagetesting.RunTestDelayedWatchDelivery),
		"WatchContextCancel":                    plain(storagetesting.RunTestWatchContextCancel),
		"WatcherTimeout":                        plain(storagetesting.RunTestWatcherTimeout),
		"WatchDeleteEventObjectHaveLatestRV":    plain(storagetesting.RunTestWatchDeleteEventObjectHaveLatestRV),
		"WatchInitializationSignal":             plain(storagetesting.RunTestWatchInitializationSignal),
		"ClusterScopedWatch":                    plain(storagetesting.RunTestClusterScopedWatch),
		"NamespaceScopedWatch":                  plain(storagetesting.RunTestNamespaceScopedWatch),
		"WatchBookmarksWithCorrectVersion":      plain(storagetesting.RunTestOptionalWatchBookmarksWithCorrectResourceVersion),
		"SendInitialEventsCompatibility":        plain(storagetesting.RunSendInitialEventsBackwardCompatibility),
		"WatchSemanticInitialEventsExtended":    plain(storagetesting.RunWatchSemanticInitialEventsExtended),
		"WatchListMatchSingle":                  plain(storagetesting.RunWatchListMatchSingle),
		"List": func(ctx context.Context, t *testing.T, s suite) {
			storagetesting.RunTestList(ctx, t, s, s.compact, false, storagetesting.NewKubernetesRecorder(nil))
		},
		"ConsistentList": func(ctx context.Context, t *testing.T, s suite) {
			storagetesting.RunTestConsistentList(ctx, t, s, s.increase, false, false, false)
		},
		"GetListNonRecursive": func(ctx context.Context, t *testing.T, s suite) {
			storagetesting.RunTestGetListNonRecursive(ctx, t, s.increase, s)
		},
		"ListContinuation": func(ctx context.Context, t *testing.T, s suite) {
			storagetesting.RunTestListContinuation(ctx, t, s, noCallCheck)
		},
		"ListPaginationRareObject": func(ctx context.Context, t *testing.T, s suite) {
			storagetesting.RunTestListPaginationRareObject(ctx, t, s, noCallCheck)
		},
		"ListContinuationWithFilter": func(ctx context.Context, t *testing.T, s suite) {
			storagetesting.RunTestListContinuationWithFilter(ctx, t, s, noCallCheck)
		},
		"ListInconsistentContinuation": func(ctx context.Context, t *testing.T, s suite) {
			storagetesting.RunTestListInconsistentContinuation(ctx, t, s, s.compact)
		},
		"CompactRevision": func(ctx context.Context, t *testing.T, s suite) {
			storagetesting.RunTestCompactRevision(ctx, t, s, s.increase, s.compact)
		},
		"WatchSemantics": func(ctx context.Context, t *testing.T, s suite) {
			storagetesting.RunWatchSemantics(ctx, t, &patient{suite: s})
		},
		"WatchFromZero": func(ctx context.Context, t *testing.T, s suite) {
			storagetesting.RunTestWatchFromZero(ctx, t, s, s.compact)
		},
		"WatchDispatchBookmarkEvents": func(ctx context.Context, t *testing.T, s suite) {
			storagetesting.RunTestWatchDispatchBookmarkEvents(ctx, t, s, true)
		},
		"ProgressNotify": func(ctx context.Context, t *testing.T, s suite) {
			go keepAskingForProgress(t.Context(), s)
			storagetesting.RunOptionalTestProgressNotify(ctx, t, s, s.increase)
		},
	} {
		t.Run(name, func(t *testing.T) {
			// The suite takes version 1 for one that exists, as it does in etcd: a log
			// that was born in 1970 has it.
			born := clocktesting.NewFakePassiveClock(time.Unix(0, 0))
			run(t.Context(), t, suite{newPodLog(logstore.Options{Clock: born})})
		})
	}
}

// keepAskingForProgress stands in for the watch cache, which asks for progress
// until it sees some. The suite has no callback for that.
func keepAskingForProgress(ctx context.Context, s suite) {
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			_ = s.RequestWatchProgress(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// patient is a suite whose creations return when all watchers have the event. The group that
// uses it gives each event 150 ms, which a busy machine may need to run a watcher.
type patient struct {
	suite
	mu      sync.Mutex
	watches []*forwarded
}

// forwarded is a watch whose events wait for who reads them.
type forwarded struct {
	watch.Interface
	below  string
	result chan watch.Event
	seen   chan string
}

func (f *forwarded) ResultChan() <-chan watch.Event { return f.result }

func (p *patient) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	inner, err := p.suite.Watch(ctx, key, opts)
	if err != nil {
		return nil, err
	}
	f := &forwarded{inner, strings.TrimSuffix(key, "/") + "/", make(chan watch.Event, 100), make(chan string, 100)}
	go func() {
		defer close(f.result)
		defer close(f.seen)
		for event := range inner.ResultChan() {
			f.result <- event
			if pod, ok := event.Object.(*example.Pod); ok && event.Type != watch.Bookmark {
				f.seen <- pod.ResourceVersion
			}
		}
	}()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watches = append(p.watches, f)
	return f, nil
}

func (p *patient) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	if err := p.suite.Create(ctx, key, obj, out, ttl); err != nil {
		return err
	}
	p.mu.Lock()
	watches := slices.Clone(p.watches)
	p.mu.Unlock()
	for _, f := range watches {
		if !strings.HasPrefix(key, f.below) {
			continue
		}
		for version := range f.seen {
			if version == out.(*example.Pod).ResourceVersion {
				break
			}
		}
	}
	return nil
}
