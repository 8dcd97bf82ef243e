// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"fmt"
	"net/url"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/encryption"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/registry/streamed"
)

const maxLogBytes = 4 << 30 // a writer's logs are smaller

// Contents are subresources with a backup's stored files and objects.
type Contents struct {
	Backups *REST
	Streams *streamed.Streams
	// Stored returns where a backup is stored, and its known files, or false.
	Stored     func(*v1alpha1.Backup) (location, storeName string, digests catalog.Digests, ok bool)
	Judge      Judge             // of the backup's contents, by namespace
	Decryption encryption.Source // the keys of encrypted backups
	Running    streamed.Logs     // of executed backups
}

// Log returns backups/log: the backup's log, also while it is written.
func (c *Contents) Log() *streamed.REST {
	digest := func(of catalog.Digests) string { return of.Log }
	return c.file("log", "text/plain; charset=utf-8", format.LogKey, digest, maxLogBytes, c.Running)
}

// Results returns backups/results: the texts of errors and warnings, by namespace.
func (c *Contents) Results() *streamed.REST {
	digest := func(of catalog.Digests) string { return of.Results }
	return c.file("results", "application/json", format.ResultsKey, digest, format.MaxSideFileBytes, nil)
}

// file serves a stored file of a backup, decompressed. Before it is stored, running serves it, unless nil.
func (c *Contents) file(subresource, contentType string, key func(storeName string) string, digest func(catalog.Digests) string, limit int64, running streamed.Logs) *streamed.REST {
	return &streamed.REST{
		Streams:    c.Streams,
		Object:     &v1alpha1.Backup{},
		Parameters: []string{streamed.FollowParameter},
		Find: func(ctx context.Context, name string, parameters url.Values) (*streamed.Answer, error) {
			ending := c.ending()
			if running != nil {
				ending.Begun = isExecuted
			}
			backup, err := ending.Find(ctx, name, subresource, parameters)
			if err != nil {
				return nil, err
			}
			if !hasEnded(backup) {
				follow, err := streamed.Follow(parameters)
				return &streamed.Answer{
					What: what(backup, subresource), ContentType: contentType,
					Running: &streamed.Running{Logs: running, UID: backup.UID, Follow: follow},
				}, err
			}
			answer, storeName, digests, err := c.answer(backup, subresource)
			if err != nil {
				return nil, err
			}
			answer.ContentType = contentType
			answer.Write = streamed.Gunzipped(key(storeName), limit, digest(digests))
			return answer, nil
		},
	}
}

func (c *Contents) ending() *streamed.Ending[*v1alpha1.Backup] {
	return &streamed.Ending[*v1alpha1.Backup]{Objects: c.Backups, Noun: "backup", Conflict: conflict,
		Phase: func(backup *v1alpha1.Backup) (string, bool) { return string(backup.Status.Phase), hasEnded(backup) }}
}

// isExecuted reports whether a backup has begun, and not ended.
func isExecuted(backup *v1alpha1.Backup) bool {
	return backup.Status.StartTimestamp != nil && !hasEnded(backup)
}

func what(backup *v1alpha1.Backup, subresource string) string {
	return fmt.Sprintf("the %s of the backup %q", subresource, backup.Name)
}

func hasEnded(backup *v1alpha1.Backup) bool {
	// The store has the rest of a backup that is being deleted.
	return backup.Status.Phase.Ended() || backup.Status.Phase == v1alpha1.BackupPhaseDeleting
}

func (c *Contents) answer(backup *v1alpha1.Backup, subresource string) (answer *streamed.Answer, storeName string, digests catalog.Digests, err error) {
	location, storeName, digests, ok := c.Stored(backup)
	if !ok {
		return nil, "", digests, streamed.NotFound(fmt.Sprintf("the backup %q has no %s: it ended as %s, and nothing of it is stored", backup.Name, subresource, backup.Status.Phase))
	}
	return &streamed.Answer{
		What:     what(backup, subresource),
		Location: location,
		Missing:  fmt.Sprintf("the backup %q has no %s in the storage location %q: its writer has stored none, or somebody has removed it", backup.Name, subresource, location),
	}, storeName, digests, nil
}
