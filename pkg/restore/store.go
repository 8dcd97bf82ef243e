// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

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
// becomes that. It may be called again. Keys are the public keys with which the cluster signs,
// and has signed.
//
// That word names the files by their digests. A write of the other process that arrives after it
// makes a file unreadable, as one of somebody else does: it must have been on its way when its
// process lost the lead, and have taken longer than the rest of the restore.
//
// What else is found in the word's place is nobody's word of this restore, and is overwritten;
// Replaced says so then. Of two processes that do so the later one's word stands.
func (e *Ended) Store(ctx context.Context, to Store, restore *holdfast.Restore, cluster format.Cluster, keys []string) error {
	// Until the metadata is there nobody reads these. Two processes that both write them have
	// found the same cluster, and each file is whole.
	found, err := e.stored(ctx, to, restore, cluster, keys)
	if err != nil || found.ours {
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
	status.Errors, status.Warnings, status.Message = e.Status.Errors, e.Status.Warnings, e.Status.Message
	status.Progress, status.Volumes, status.CompletionTimestamp = e.Status.Progress, e.Status.Volumes, e.Status.CompletionTimestamp
	status.HookStatus = e.Status.HookStatus
	metadata, err := format.EncodeRestore(restore, contents, cluster)
	if err != nil {
		return err
	}
	key := format.RestoreMetadataKey(e.name)
	if found.reason == "" {
		switch err = to.Create(ctx, key, metadata); {
		case err == nil:
			e.setDigests(contents)
			return nil
		case !errors.Is(err, store.ErrExists):
			return err
		}
		if found, err = e.stored(ctx, to, restore, cluster, keys); err != nil || found.ours {
			return err
		}
		if found.reason == "" {
			return fmt.Errorf("%s: somebody writes and removes it: see who writes to the store", key)
		}
	}
	if !bytes.Equal(found.data, metadata) { // else it can't be signed, and is this
		if err := to.Put(ctx, key, metadata); err != nil {
			return err
		}
		reason := strings.ToValidUTF8(found.reason[:min(len(found.reason), maxReasonBytes)], "")
		e.Replaced = fmt.Sprintf("the store had something else as the end of this restore, which was overwritten: %s: see who writes to %s", reason, key)
	}
	e.setDigests(contents)
	return nil
}

func (e *Ended) setDigests(contents format.Contents) {
	e.Digests = make(map[string]string, len(contents))
	for name, content := range contents {
		e.Digests[name] = content.SHA256
	}
}

// maxReasonBytes bounds what is told of what others have written: an event has 1024 bytes.
const maxReasonBytes = 400

// word is what lies where the end of a restore is stored. It is the zero value if nothing does.
type word struct {
	// ours is true if it is of this restore, as this cluster has signed it.
	ours bool
	// reason says why it is not, and data is what was read then.
	reason string
	data   []byte
}

// stored takes the status that is stored, if one is that can be believed.
func (e *Ended) stored(ctx context.Context, from Store, of *holdfast.Restore, cluster format.Cluster, keys []string) (word, error) {
	content, err := from.Get(ctx, format.RestoreMetadataKey(e.name))
	if errors.Is(err, store.ErrNotFound) {
		return word{}, nil
	}
	if err != nil {
		return word{}, err
	}
	defer func() { _ = content.Close() }()
	data, err := io.ReadAll(io.LimitReader(content, format.MaxMetadataBytes+1))
	if err != nil {
		return word{}, err
	}
	restore, contents, origin, err := format.DecodeRestore(data)
	switch {
	case err != nil:
		return word{reason: err.Error(), data: data}, nil
	case origin.Trust != "":
		return word{reason: origin.Message, data: data}, nil
	case origin.ClusterUID != cluster.UID || !slices.Contains(keys, origin.PublicKey):
		return word{reason: "this cluster has not signed it", data: data}, nil
	case restore.UID != of.UID || restore.Namespace != of.Namespace || restore.Name != of.Name || !restore.Status.Phase.Ended():
		return word{reason: fmt.Sprintf("it is of the restore %s/%s with the uid %q", restore.Namespace, restore.Name, restore.UID), data: data}, nil
	}
	e.Status = restore.Status
	e.setDigests(contents)
	return word{ours: true}, nil
}

// became are the words that a resource list has for what became of an object.
var became = [...]string{actionCreate: "created", actionUpdate: "updated", actionRecreate: "created", actionSkip: "skipped", actionLeave: "skipped", actionConflict: "skipped", actionForbidden: "skipped", actionRefused: "failed", actionError: "failed"}

// resourceList is the content of the list of what became of each object.
func (e *execution) resourceList() []byte {
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
	if left := shorten(list, maxListBytes); left > 0 {
		e.report.warn(subject{}, fmt.Sprintf("the list of what became of each object has no room for %d of them: see the plan and the log", left))
	}
	var content bytes.Buffer
	_ = format.WriteResourceList(&content, list) // it has room, and a buffer takes everything
	return content.Bytes()
}

// maxListBytes bounds the list as JSON: a longer one nobody reads.
const maxListBytes = format.MaxSideFileBytes - 1<<10

// shorten leaves out of a list what has no room in so many bytes of JSON, and reports how many
// names that were.
func shorten(list format.ResourceList, most int) (left int) {
	length := func(text string) int {
		encoded, _ := json.Marshal(text) // every string has JSON
		return len(encoded)
	}
	size := len("{}\n")
	for _, kind := range slices.Sorted(maps.Keys(list)) {
		size += length(kind) + len(":[],")
		for i, name := range list[kind] {
			if size += length(name) + len(","); size > most {
				left += len(list[kind]) - i
				list[kind] = list[kind][:i]
				break
			}
		}
		if len(list[kind]) == 0 {
			delete(list, kind)
		}
	}
	return left
}

func (e *execution) results() []byte {
	var content bytes.Buffer
	_ = format.WriteResults(&content, e.report.results) // report keeps no more than has room
	return content.Bytes()
}
