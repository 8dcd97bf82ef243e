// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// The end waits for what is still written, but not for ever.
func TestAwaitLast(t *testing.T) {
	for takes, want := range map[time.Duration]time.Duration{0: 0, time.Second: time.Second, time.Hour: lastWrite} {
		synctest.Test(t, func(t *testing.T) {
			var running sync.WaitGroup
			running.Go(func() { time.Sleep(takes) })
			begun := time.Now()
			awaitLast(&running)
			took := time.Since(begun)
			running.Wait()
			if took != want {
				t.Errorf("for what takes %s it waits %s, not %s", takes, took, want)
			}
		})
	}
}
