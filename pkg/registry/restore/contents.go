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

// Larger files are not sent: a writer's are smaller.
const (
	maxLogBytes  = 4 << 30
	maxPlanBytes = 4 << 30
)

// Contents are subresources with a restore's stored files.
type Contents struct {
	Restores        *REST
	Streams         *streamed.Streams
	SystemNamespace string
	Digest          func(restore *v1alpha1.Restore, key string) string // SHA-256 of an object, "" if unknown
	Running         streamed.Logs                                      // of executed restores
}

// Log returns restores/log, also while it is written.
func (c *Contents) Log() *streamed.REST {
	return c.file("log", "text/plain; charset=utf-8", format.RestoreLogKey, maxLogBytes, c.Running)
}

// Results returns restores/results: the texts of errors and warnings, by namespace.
func (c *Contents) Results() *streamed.REST {
	return c.file("results", "application/json", format.RestoreResultsKey, format.MaxSideFileBytes, nil)
}

// Plan returns restores/plan: the decision about each object.
func (c *Contents) Plan() *streamed.REST {
	return c.file("plan", "application/json", format.RestorePlanKey, maxPlanBytes, nil)
}

// file serves a stored file of a restore, decompressed. Before it is stored, running serves it, unless nil.
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
				Missing:     fmt.Sprintf("the restore %q, which ended as %s, has no %s in the storage location %q: it did not begin, its end could not be stored yet, it was removed, or nothing is stored there because the location has spec.s3.asOf", name, restore.Status.Phase, subresource, location),
				Write:       streamed.Gunzipped(key, limit, c.Digest(restore, key)),
			}, nil
		},
	}
}
