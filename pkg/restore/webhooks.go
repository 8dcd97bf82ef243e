// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/holdfast-io/holdfast/pkg/waits"
)

// webhookTimeout bounds the wait for a silent webhook, webhookEndTimeout the last: its pods may
// have been restored.
var webhookTimeout, webhookEndTimeout, webhookInterval = 30 * time.Second, endpointsTimeout, 500 * time.Millisecond

// deniedEndTimeout bounds the last retries of denied objects: admission's inputs may have just been
// restored.
var deniedEndTimeout = 3 * time.Second

var webhookName = regexp.MustCompile(`failed calling webhook "([^"]*)"|conversion webhook for (\S+) failed`)

func unanswered(err error) string {
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) || answer.Status().Code != http.StatusInternalServerError {
		return ""
	}
	found := webhookName.FindStringSubmatch(err.Error())
	if found == nil {
		return ""
	}
	return found[1] + found[2]
}

// webhooks has the silent webhooks and denied objects. All objects wait for a webhook once.
type webhooks struct {
	mu    sync.Mutex
	until map[string]time.Time
	// postponed are the refused nodes; last says that it is the last retry.
	postponed map[int32]bool
	last      bool
}

// await waits a moment if a webhook did not answer, or, at the end, if admission denied an object.
// It reports whether to try again.
func (w *webhooks) await(ctx context.Context, now func() time.Time, err error) bool {
	name := unanswered(err)
	what, timeout := fmt.Sprintf("the webhook %s, which does not answer", name), webhookTimeout
	w.mu.Lock()
	switch {
	case name != "" && w.last:
		timeout = webhookEndTimeout
	case name == "" && w.last && isDenied(err):
		name, what, timeout = "denied", "admission, which has denied an object", deniedEndTimeout
	case name == "":
		w.mu.Unlock()
		return false
	}
	until, known := w.until[name]
	if !known {
		if w.until == nil {
			w.until = map[string]time.Time{}
		}
		until = now().Add(timeout)
		w.until[name] = until
	}
	w.mu.Unlock()
	if !now().Before(until) {
		return false
	}
	waiting := waits.ForAnyone(ctx, what)
	defer waiting.End()
	return sleep(ctx, webhookInterval) == nil
}

func (w *webhooks) finish() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last, w.until = true, nil
}

// isDenied reports whether admission refused an object: inputs of a webhook, a policy or a quota
// may follow.
func isDenied(err error) bool {
	if unreached(err) {
		return false
	}
	text := err.Error()
	return slices.ContainsFunc([]string{"denied the request", "denied request", "failed to configure binding", "exceeded quota"}, func(words string) bool { return strings.Contains(text, words) })
}

// postpone notes an object for a retry at the end: a webhook did not answer, admission refused it,
// or its account waits so.
func (w *webhooks) postpone(node int32, err error) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last || unanswered(err) == "" && !isDenied(err) && !(len(w.postponed) > 0 && strings.Contains(err.Error(), "error looking up service account")) {
		return false
	}
	if w.postponed == nil {
		w.postponed = map[int32]bool{}
	}
	w.postponed[node] = true
	return true
}

func (w *webhooks) isPostponed(node int32) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.last && w.postponed[node]
}
