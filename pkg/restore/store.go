// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	holdfast "github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// Store is what this package needs of a location to tell how a restore ended.
type Store interface {
	Create(ctx context.Context, key string, data []byte) error
	Put(ctx context.Context, key string, data []byte) error
	Get(ctx context.Context, key string) (io.ReadCloser, error)
}

// Cancelled makes a restore that was stopped one that was cancelled.
func (e *Ended) Cancelled(reason string) {
	e.Status.Phase, e.Status.FailureReason = holdfast.RestorePhaseCancelled, reason
}

// Store writes what is to be told of a restore, and that it has ended last, by a conditional
// write: of two processes that have executed it, one's word stands, and the other's status
// becomes that. It may be called again.
//
// That word names the files by their digests. A write of the other process that arrives after it
// makes a file unreadable, as one of somebody else does: it must have been on its way when its
// process lost the lead, and have taken longer than the rest of the restore.
func (e *Ended) Store(ctx context.Context, to Store, restore *holdfast.Restore, cluster format.Cluster) error {
	// Until the metadata is there nobody reads these. Two processes that both write them have
	// found the same cluster, and each file is whole.
	if stored, err := e.stored(ctx, to); stored || err != nil {
		return err
	}
	contents := format.Contents{}
	for _, f := range e.files {
		if err := to.Put(ctx, f.key, f.content); err != nil {
			return err
		}
		contents.Set(f.key, format.NewContent(f.content))
	}
	restore = restore.DeepCopy()
	status := &restore.Status
	status.Phase, status.FailureReason, status.ValidationErrors = e.Status.Phase, e.Status.FailureReason, e.Status.ValidationErrors
	status.Errors, status.Warnings = e.Status.Errors, e.Status.Warnings
	status.Progress, status.Volumes, status.CompletionTimestamp = e.Status.Progress, e.Status.Volumes, e.Status.CompletionTimestamp
	status.HookStatus = e.Status.HookStatus
	metadata, err := format.EncodeRestore(restore, contents, cluster)
	if err != nil {
		return err
	}
	err = to.Create(ctx, format.RestoreMetadataKey(e.name), metadata)
	if errors.Is(err, store.ErrExists) {
		_, err = e.stored(ctx, to)
		return err
	}
	e.setDigests(contents)
	return err
}

func (e *Ended) setDigests(contents format.Contents) {
	e.Digests = make(map[string]string, len(contents))
	for name, content := range contents {
		e.Digests[name] = content.SHA256
	}
}

// stored takes the status that is stored, if one is.
func (e *Ended) stored(ctx context.Context, from Store) (bool, error) {
	content, err := from.Get(ctx, format.RestoreMetadataKey(e.name))
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = content.Close() }()
	data, err := io.ReadAll(io.LimitReader(content, format.MaxMetadataBytes))
	if err != nil {
		return false, err
	}
	restore, contents, _, err := format.DecodeRestore(data)
	if err != nil {
		return false, fmt.Errorf("%s: %w", format.RestoreMetadataKey(e.name), err)
	}
	e.Status = restore.Status
	e.setDigests(contents)
	return true, nil
}

// became are the words that a resource list has for what became of an object.
var became = [...]string{actionCreate: "created", actionUpdate: "updated", actionRecreate: "created", actionSkip: "skipped", actionConflict: "skipped", actionRefused: "failed", actionError: "failed"}

// resourceList is the content of the list of what became of each object.
func (e *execution) resourceList() []byte {
	var content bytes.Buffer
	list := format.ResourceList{}
	if e.graph != nil && !e.spec.PlanOnly {
		for i, a := range e.outcomes {
			if item := e.graph.Nodes[i].Item; item != nil && a != actionNone {
				about := e.subject(item)
				name := about.name
				if about.namespace != "" {
					name = about.namespace + "/" + name
				}
				list[item.GroupKind()] = append(list[item.GroupKind()], name+"("+became[a]+")")
			}
		}
	}
	_ = format.WriteResourceList(&content, list) // a buffer takes everything
	return content.Bytes()
}

func (e *execution) results() []byte {
	var content bytes.Buffer
	_ = format.WriteResults(&content, e.report.results) // a buffer takes everything
	return content.Bytes()
}
