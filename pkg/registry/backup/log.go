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

// maxLogBytes is the size beyond which a log is not sent: more than a writer makes.
const maxLogBytes = 4 << 30

// Contents are subresources with what a backup has in its store.
type Contents struct {
	Backups *REST
	Streams *streamed.Streams
	// Stored says where a backup lies, and which files it has there, as far as that is known;
	// it is false if nothing of it is stored.
	Stored func(*v1alpha1.Backup) (location, storeName string, digests catalog.Digests, ok bool)
	// Judge says to which namespaces what a backup holds belongs.
	Judge Judge
	// Decryption has the keys of encrypted backups.
	Decryption encryption.Source
	// Running has the logs of backups that are executed.
	Running streamed.Logs
}

// Log serves backups/log: the backup's own log, while it is written and when it is stored.
func (c *Contents) Log() *streamed.REST {
	digest := func(of catalog.Digests) string { return of.Log }
	return c.file("log", "text/plain; charset=utf-8", format.LogKey, digest, maxLogBytes, c.Running)
}

// Results serves backups/results: the texts of its errors and warnings, by namespace.
func (c *Contents) Results() *streamed.REST {
	digest := func(of catalog.Digests) string { return of.Results }
	return c.file("results", "application/json", format.ResultsKey, digest, format.MaxSideFileBytes, nil)
}

// file serves a file of a backup as it is stored, decompressed. What there is of it before is
// served from running, if that is not nil.
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

// ending finds backups that have ended.
func (c *Contents) ending() *streamed.Ending[*v1alpha1.Backup] {
	return &streamed.Ending[*v1alpha1.Backup]{Objects: c.Backups, Noun: "backup", Conflict: conflict,
		Phase: func(backup *v1alpha1.Backup) (string, bool) { return string(backup.Status.Phase), hasEnded(backup) }}
}

// isExecuted reports whether a controller has begun with a backup, and has not ended it.
func isExecuted(backup *v1alpha1.Backup) bool {
	return backup.Status.StartTimestamp != nil && !hasEnded(backup)
}

func what(backup *v1alpha1.Backup, subresource string) string {
	return fmt.Sprintf("the %s of the backup %q", subresource, backup.Name)
}

func hasEnded(backup *v1alpha1.Backup) bool {
	// Of what is left of one that is being deleted, the store tells.
	return backup.Status.Phase.Ended() || backup.Status.Phase == v1alpha1.BackupPhaseDeleting
}

// answer is one about something of a backup that has ended.
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
