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

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// Store reads and writes a location.
type Store interface {
	Create(ctx context.Context, key string, data []byte) error
	Put(ctx context.Context, key string, data []byte) error
	Get(ctx context.Context, key string) (io.ReadCloser, error)
}

// Cancelled turns a stopped restore into a cancelled one.
func (e *Ended) Cancelled(reason string) {
	e.Status.Phase, e.Status.FailureReason = v1alpha1.RestorePhaseCancelled, reason
}

// Store writes a restore's files, and last its end by a conditional write. Of two processes that
// executed it, the first end stands, and the other takes its status. It may be called again. keys
// are the cluster's present and earlier public keys.
//
// The end names the files by digest: a late or foreign write makes a file unreadable. At the end's
// key, an object not signed for this restore is overwritten, and Replaced says so.
func (e *Ended) Store(ctx context.Context, to Store, restore *v1alpha1.Restore, cluster format.Cluster, keys []string) error {
	// Without metadata nothing is read. Two processes have found the same cluster, and each file is
	// whole.
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
	if !bytes.Equal(found.data, metadata) {
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

// maxReasonBytes bounds foreign text: an event has 1024 bytes.
const maxReasonBytes = 400

// word is the object at the end's key, or the zero value.
type word struct {
	ours bool
	// reason says why it is not ours, data is its content.
	reason string
	data   []byte
}

// stored takes over the stored status, if it can be believed.
func (e *Ended) stored(ctx context.Context, from Store, of *v1alpha1.Restore, cluster format.Cluster, keys []string) (word, error) {
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

var became = [...]string{actionCreate: "created", actionUpdate: "updated", actionRecreate: "created", actionSkip: "skipped", actionLeave: "skipped", actionConflict: "skipped", actionForbidden: "skipped", actionRefused: "failed", actionError: "failed"}

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
	_ = format.WriteResourceList(&content, list)
	return content.Bytes()
}

// maxListBytes bounds the list as JSON: a longer one can't be read.
const maxListBytes = format.MaxSideFileBytes - 1<<10

func shorten(list format.ResourceList, most int) (left int) {
	length := func(text string) int {
		encoded, _ := json.Marshal(text)
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
	_ = format.WriteResults(&content, e.report.results)
	return content.Bytes()
}
