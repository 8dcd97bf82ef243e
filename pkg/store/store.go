// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package store reads and writes the objects of one storage location: a folder
// or a bucket, below the location's prefix.
//
// What may be done is split by interface: Reader, Writer and Remover, so that
// code which holds a Reader cannot write or delete, whatever its bugs. Bucket is
// all three, and has besides what the repositories of volumes need for their many
// and large objects: GetRange, PutContent, Remove and Folder. So there is one way to
// a store, and what is available to backups is available to repositories. Every
// implementation keeps these promises, which package storetest tests:
//
//  1. An object is visible whole or not at all, and only after its write has
//     succeeded. An aborted or crashed write leaves no visible object.
//  2. Of several Creates of one key, at most one succeeds.
//  3. What is written is read, listed and found at once.
//  4. A listing is complete and ordered by the bytes of the keys, or it ends in
//     an error. A store that is not there is an error, never an empty listing.
//  5. A removal names what it removes, not only where that lies: of what was
//     written to the same key later it removes nothing. What remains of that
//     promise where a store can't keep it by itself, Remover says. Only Remove, for
//     names that are given once, does without.
//  6. Errors name kind, operation and key in stable words, without request ids,
//     and never hold a secret.
package store

import (
	"context"
	"io"
	"iter"
	"time"
)

// Object is an object of the store, or a folder in a listing.
type Object struct {
	// Key is the object's name below the location's prefix. That of a folder ends
	// in "/".
	Key string
	// IsFolder is true for the common beginning of keys in a listing of one level.
	// Size and ModTime are those of an object only.
	IsFolder bool
	// Size is in bytes.
	Size int64
	// ModTime is when the object was written, by the store's clock.
	ModTime time.Time
	// Version tells the object from others of its key, before and after it, unless
	// they have the same bytes.
	Version string
}

// ListOptions say what to list.
type ListOptions struct {
	// Recursive lists all objects below the folder, and no folders. Otherwise the
	// objects and folders of one level are listed. A folder store may list a
	// folder that holds no object; readers must bear that.
	Recursive bool
	// StartAfter leaves out all keys up to and including this one.
	StartAfter string
	// Beginning leaves out all whose names in the folder begin otherwise. It has a
	// slash with Recursive only.
	Beginning string
	// Unfinished lists, besides, what writers that died left in a folder store. It can
	// be removed, and nothing else.
	Unfinished bool
}

// Reader reads objects.
type Reader interface {
	// List yields what lies in a folder, "" or a key that ends in "/", in the order
	// of the keys' bytes. A folder without objects is an empty one. After an error,
	// which is the last value, the listing is incomplete. S3 needs one request per
	// 1,000 results.
	List(ctx context.Context, folder string, options ListOptions) iter.Seq2[Object, error]
	// Get opens an object for reading, in one request. The error is ErrNotFound if
	// there is none. Reads end when ctx does. VersionOf the result is that of the object.
	Get(ctx context.Context, key string) (io.ReadCloser, error)
	// Attributes describes an object, in one request. The error is ErrNotFound if
	// there is none.
	Attributes(ctx context.Context, key string) (Object, error)
}

// Versioned is an object that is read and knows its version.
type Versioned interface{ Version() string }

// VersionOf is the version of an object that is being read, as List gives it; empty if the
// store does not say.
func VersionOf(content io.Reader) string {
	if versioned, ok := content.(Versioned); ok {
		return versioned.Version()
	}
	return ""
}

// Ranger reads parts of objects besides.
type Ranger interface {
	Reader
	// GetRange opens a part of an object for reading, in one request: so many bytes, one
	// at least, or with a negative length all to the end. Where the object ends earlier,
	// less is read; if it ends before the part begins, nothing, or the error is ErrRange.
	GetRange(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error)
}

// Content is what an object is written from. It can be read again, for another
// attempt.
type Content interface {
	io.WriterTo
	Length() int
	Reader() io.ReadSeekCloser
}

// Retention is how long S3 keeps an object from being removed. Its zero value leaves
// that to the bucket.
type Retention struct {
	// Mode is GOVERNANCE or COMPLIANCE.
	Mode  string
	Until time.Time
}

// Writer writes objects.
type Writer interface {
	// Create writes an object that must not exist: else the error is ErrExists. A
	// Create whose answer was lost may also end in ErrExists, so the caller compares
	// what is there. On return without an error the object, and all that was written
	// before it, is durable.
	Create(ctx context.Context, key string, content []byte) error
	// Put writes an object, or replaces it.
	Put(ctx context.Context, key string, content []byte) error
	// NewWriter writes an object that must not exist, as its content comes, with
	// memory for a few parts and without a local copy. Nothing is visible before
	// Commit. The write is aborted when ctx ends.
	NewWriter(ctx context.Context, key string) (ObjectWriter, error)
}

// ObjectWriter writes one object. It ends with Commit or Abort; it is not safe
// for concurrent use.
type ObjectWriter interface {
	io.Writer
	// Commit makes the object visible, or fails and leaves nothing: with ErrExists if
	// there is one, which may be this one if an answer was lost. It is called once.
	Commit() error
	// Abort leaves nothing visible. After Commit it does nothing, so it can be deferred.
	Abort()
}

// Remover removes objects.
type Remover interface {
	// Delete removes an object as List or Attributes has described it, however long
	// ago. One that does not exist is as good as removed; one that was written in its
	// place stays, and the error is ErrChanged.
	//
	// S3 compares and removes in one step. Of a store that ignores If-Match, such as an
	// older one, the object is described again immediately before: a process that is
	// paused after that, by an end of its machine's sleep within the microseconds until
	// the request leaves, may remove another one. In a folder store the object is moved
	// aside, compared, and moved back if it is another one: a process that is killed
	// between, having slept between two system calls before, takes that one along.
	Delete(ctx context.Context, object Object) error
}
