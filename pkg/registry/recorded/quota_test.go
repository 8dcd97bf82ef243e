// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package recorded

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/sets"
)

// Of requests at the same time exactly as many are let in as fit, wherever the
// news of their records is. A request may have several records.
func TestConcurrentRequestsShareTheLimit(t *testing.T) {
	var mu sync.Mutex
	known := sets.New[string]()
	q := &Quota{
		Limit: func(string) (int, string) { return 21, "--flag" },
		Load: func(_ string, coming sets.Set[string]) (records, unfinished int) {
			mu.Lock()
			defer mu.Unlock()
			n := known.Union(coming).Len()
			return n, n
		},
		Unfinished: "%[1]d in %[2]s, %[3]d more, and at most %[4]d (%[5]s)",
	}
	begin := make(chan struct{})
	results := make(chan error, 50)
	for i := range cap(results) {
		go func() {
			<-begin
			records := []string{fmt.Sprintf("shop.a%d", i), fmt.Sprintf("shop.b%d", i)}
			done, err := q.Admit("shop", "a", records...)
			if err == nil {
				mu.Lock()
				known.Insert(records...)
				mu.Unlock()
				done()
			}
			results <- err
		}()
	}
	close(begin)
	admitted := 0
	for range cap(results) {
		if err := <-results; err == nil {
			admitted++
		} else if want := `: 20 in shop, 2 more, and at most 21 (--flag)`; !apierrors.IsForbidden(err) || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("refused with %v, want ...%s", err, want)
		}
	}
	if admitted != 10 || len(q.coming) != 0 {
		t.Errorf("%d of 10 were let in; still coming: %v", admitted, q.coming)
	}
}
