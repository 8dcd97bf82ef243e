// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package store reads and writes the objects of one storage location: a folder or a bucket,
// below the location's prefix. Reader, Writer and Remover split the rights, so that code with a
// Reader can't write. Bucket has all three, and the operations that repositories need besides.
// Every implementation keeps these promises, which package storetest tests:
//
//  1. An object is visible as a whole, after its write has succeeded, or not at all.
//  2. Of several Creates of one key, at most one succeeds.
//  3. A write is read, listed and found at once.
//  4. A listing is complete and in the order of the keys' bytes, or it ends in an error. A
//     missing store is an error, never an empty listing.
//  5. A removal names the version that it removes; a later object of the key stays. Remover says
//     where a store can't keep that. Only Remove, for names that are given once, does without.
//  6. Errors name kind, operation and key in stable words, without request ids and secrets.
package store

import (
	"context"
	"io"
	"iter"
	"time"
)

// Object is an object of the store, or a folder in a listing.
type Object struct {
	// Key is the name below the location's prefix. The key of a folder ends in "/".
	Key string
	// IsFolder is true for a folder in a listing of one level; it has no Size and no ModTime.
	IsFolder bool
	Size     int64
	// ModTime is the time of the write, by the store's clock.
	ModTime time.Time
	// Version tells the object from earlier and later ones of its key with other bytes.
	Version string
}

// ListOptions say what to list.
type ListOptions struct {
	// Recursive lists all objects below the folder, and no folders. Otherwise one level is
	// listed; a folder store may list a folder without objects.
	Recursive bool
	// StartAfter leaves out all keys up to and including this one.
	StartAfter string
	// Beginning is how the names in the folder begin. It has a slash with Recursive only.
	Beginning string
	// Unfinished also lists the files of dead writers in a folder store. They can only be
	// removed.
	Unfinished bool
}

// Reader reads objects.
type Reader interface {
	// List yields the content of a folder, "" or a key that ends in "/". A missing folder is
	// empty. An error is the last value, and the listing is incomplete then. S3 needs one request
	// for 1,000 results.
	List(ctx context.Context, folder string, options ListOptions) iter.Seq2[Object, error]
	// Get opens an object for reading, in one request, or fails with ErrNotFound. Reads end with
	// ctx. VersionOf tells the version of the result.
	Get(ctx context.Context, key string) (io.ReadCloser, error)
	// Attributes describes an object, in one request, or fails with ErrNotFound.
	Attributes(ctx context.Context, key string) (Object, error)
}

// Versioned is an open object that knows its version.
type Versioned interface{ Version() string }

// VersionOf returns the version of an open object, as List gives it, or "" if it is unknown.
func VersionOf(content io.Reader) string {
	if versioned, ok := content.(Versioned); ok {
		return versioned.Version()
	}
	return ""
}

// Ranger also reads parts of objects.
type Ranger interface {
	Reader
	// GetRange opens a part of an object for reading, in one request: at least one byte, or all
	// to the end with a negative length. An object that ends earlier gives less; one that ends
	// before the part gives nothing, or ErrRange.
	GetRange(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error)
}

// Content is the content of a write. It can be read again, for another attempt.
type Content interface {
	io.WriterTo
	Length() int
	Reader() io.ReadSeekCloser
}

// Retention protects an object of S3 from removal. The zero value leaves that to the bucket.
type Retention struct {
	// Mode is GOVERNANCE or COMPLIANCE.
	Mode  string
	Until time.Time
}

// Writer writes objects.
type Writer interface {
	// Create writes a new object, or fails with ErrExists. A lost answer may end in ErrExists
	// too, so the caller compares the object. Without an error, this write and all before it are
	// durable.
	Create(ctx context.Context, key string, content []byte) error
	// Put writes an object, or replaces it.
	Put(ctx context.Context, key string, content []byte) error
	// NewWriter writes a new object as its content comes, in bounded memory and without a local
	// copy. It is visible after Commit. The end of ctx aborts it.
	NewWriter(ctx context.Context, key string) (ObjectWriter, error)
}

// ObjectWriter writes one object. It ends with Commit or Abort, and is not safe for concurrent
// use.
type ObjectWriter interface {
	io.Writer
	// Commit makes the object visible, or fails and leaves nothing. ErrExists may mean this very
	// object, if an answer was lost. It is called once.
	Commit() error
	// Abort leaves nothing visible. After Commit it does nothing.
	Abort()
}

// Remover removes objects.
type Remover interface {
	// Delete removes an object in the version that List or Attributes described. A missing object
	// is no error; a later object stays, and the error is ErrChanged.
	//
	// S3 compares and removes in one step. A store that ignores If-Match is asked immediately
	// before; a process that is paused between may remove a later object. A folder store moves
	// the object aside, compares it, and moves a later one back; a process that sleeps before the
	// move and is killed after it loses that one.
	Delete(ctx context.Context, object Object) error
}
