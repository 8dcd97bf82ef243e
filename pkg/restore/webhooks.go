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

// webhookTimeout is how long a webhook that does not answer is waited for when it is met, and
// webhookEndTimeout once more at the end: its pods may have come back with the restore, and take their
// time to start. webhookInterval is how often it is tried.
var webhookTimeout, webhookEndTimeout, webhookInterval = 30 * time.Second, endpointsTimeout, 500 * time.Millisecond

// deniedEndTimeout is how long all that admission has denied is tried again at the end, together: what it
// looks at has just come back, and admission hears of that a little later.
var deniedEndTimeout = 3 * time.Second

var webhookName = regexp.MustCompile(`failed calling webhook "([^"]*)"|conversion webhook for (\S+) failed`)

// unanswered is the name of the webhook that an answer says did not answer, or "".
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

// webhooks are those that do not answer, and what admission has denied. Each is waited for once, by all
// that meet it.
type webhooks struct {
	mu    sync.Mutex
	until map[string]time.Time
	// postponed are the nodes of what they refused, and last is set when these are tried for the
	// last time.
	postponed map[int32]bool
	last      bool
}

// await waits a moment if an answer is that a webhook did not answer, or at the end that admission has
// denied an object. It reports whether to try again.
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

// finish has what they refused be tried for the last time: what they run on may be there by now.
func (w *webhooks) finish() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last, w.until = true, nil
}

// isDenied reports whether admission has refused an object. What a webhook, a policy or a quota looks at
// may come back later in the restore.
func isDenied(err error) bool {
	if unreached(err) {
		return false
	}
	text := err.Error()
	return slices.ContainsFunc([]string{"denied the request", "denied request", "failed to configure binding", "exceeded quota"}, func(words string) bool { return strings.Contains(text, words) })
}

// postpone has an object that could not be written tried once more at the end, if a webhook did not
// answer, if admission has refused it, or if the account of a pod waits for that.
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

// isPostponed reports whether a node is tried once more.
func (w *webhooks) isPostponed(node int32) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.last && w.postponed[node]
}
