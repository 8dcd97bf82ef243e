// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"context"
	"fmt"
	"net/url"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/registry/streamed"
)

// The sizes beyond which something is not sent: more than a writer makes.
const (
	maxLogBytes  = 4 << 30
	maxPlanBytes = 4 << 30
)

// Contents are subresources with what a restore has in its store.
type Contents struct {
	Restores *REST
	Streams  *streamed.Streams
	// SystemNamespace is where the records live.
	SystemNamespace string
	// Digest gives the SHA-256 of an object of a restore by its key, or nothing if that is not known.
	Digest func(restore *v1alpha1.Restore, key string) string
	// Running has the logs of restores that are executed.
	Running streamed.Logs
}

// Log serves restores/log: the restore's own log, while it is written and when it is stored.
func (c *Contents) Log() *streamed.REST {
	return c.file("log", "text/plain; charset=utf-8", format.RestoreLogKey, maxLogBytes, c.Running)
}

// Results serves restores/results: the texts of its errors and warnings, by namespace.
func (c *Contents) Results() *streamed.REST {
	return c.file("results", "application/json", format.RestoreResultsKey, format.MaxSideFileBytes, nil)
}

// Plan serves restores/plan: what was decided about each object.
func (c *Contents) Plan() *streamed.REST {
	return c.file("plan", "application/json", format.RestorePlanKey, maxPlanBytes, nil)
}

// file serves a file of a restore as it is stored, decompressed. What there is of it before is
// served from running, if that is not nil.
func (c *Contents) file(subresource, contentType string, key func(storeName string) string, limit int64, running streamed.Logs) *streamed.REST {
	ending := streamed.Ending[*v1alpha1.Restore]{Objects: c.Restores, Noun: "restore", Conflict: conflict,
		Phase: func(restore *v1alpha1.Restore) (string, bool) { return phase(restore), restore.Status.Phase.Ended() }}
	if running != nil {
		ending.Begun = func(restore *v1alpha1.Restore) bool { return restore.Status.StartTimestamp != nil }
	}
	return &streamed.REST{
		Streams:    c.Streams,
		Object:     &v1alpha1.Restore{},
		Parameters: []string{streamed.FollowParameter},
		Find: func(ctx context.Context, name string, parameters url.Values) (*streamed.Answer, error) {
			restore, err := ending.Find(ctx, name, subresource, parameters)
			if err != nil {
				return nil, err
			}
			what := fmt.Sprintf("the %s of the restore %q", subresource, name)
			if !restore.Status.Phase.Ended() {
				follow, err := streamed.Follow(parameters)
				return &streamed.Answer{What: what, ContentType: contentType, Running: &streamed.Running{Logs: running, UID: restore.UID, Follow: follow}}, err
			}
			location := storageLocation(restore)
			key := key(storeNameOf(restore, c.SystemNamespace))
			return &streamed.Answer{
				What:        what,
				Location:    location,
				ContentType: contentType,
				Missing:     fmt.Sprintf("the restore %q, which ended as %s, has no %s in the storage location %q: it did not begin, its end could not be stored yet, or somebody has removed it", name, restore.Status.Phase, subresource, location),
				Write:       streamed.Gunzipped(key, limit, c.Digest(restore, key)),
			}, nil
		},
	}
}
