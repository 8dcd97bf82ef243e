// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/utils/clock"
)

func TestLoop(t *testing.T) {
	// The others slow down by the time since the last error, which is decades in a bubble.
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
	synctest.Test(t, func(t *testing.T) {
		l := New[string](Config{Controller: "test", Workers: 2, FirstRetry: time.Second, LastRetry: 4 * time.Second, Clock: clock.RealClock{}})
		ctx, cancel := context.WithCancel(t.Context())
		begin := time.Now()
		var mu sync.Mutex
		var tries []time.Duration
		working := map[string]bool{}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			l.Run(ctx, func(ctx context.Context, name string) error {
				mu.Lock()
				if working[name] {
					t.Errorf("two work on %s", name)
				}
				working[name] = true
				if name == "fails" {
					tries = append(tries, time.Since(begin))
				}
				mu.Unlock()
				if name == "slow" {
					l.Add(name) // must wait for this one's end
					<-ctx.Done()
					time.Sleep(time.Minute)
				}
				mu.Lock()
				defer mu.Unlock()
				working[name] = false
				return errors.New("not yet")
			})
		}()
		l.Add("slow")
		l.Add("fails")
		time.Sleep(13 * time.Second)
		l.Soon("fails")
		synctest.Wait()
		if want := []time.Duration{0, time.Second, 3 * time.Second, 7 * time.Second, 11 * time.Second, 13 * time.Second}; !slices.Equal(tries, want) {
			t.Errorf("tried at %v, want %v", tries, want)
		}
		cancel()
		synctest.Wait()
		select {
		case <-ended:
			t.Error("it has ended before its work has")
		default:
		}
		<-ended
	})
}
