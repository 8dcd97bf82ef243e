// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package store reads and writes the objects of one storage location: a folder or a bucket, below the
// location's prefix. Reader, Writer and Remover split the rights. Bucket has all three, and operations
// for repositories. Package storetest tests that every implementation keeps these promises:
//
//  1. An object is visible as a whole after its successful write, or not at all.
//  2. Of several Creates of one key, at most one succeeds.
//  3. A write is read, listed and found at once.
//  4. A listing is complete and in the order of the keys' bytes, or ends in an error. A missing
//     store is an error.
//  5. A removal names a version; a later object of the key stays. Remover lists exceptions. Remove
//     is for names that are used once.
//  6. Errors name kind, operation and key in stable words, without request ids and secrets.
package store

import (
	"context"
	"io"
	"iter"
	"time"
)

// Object is an object, or a folder in a listing.
type Object struct {
	// Key is below the location's prefix; a folder's ends in "/".
	Key string
	// IsFolder is true for a listed folder, without Size and ModTime.
	IsFolder bool
	Size     int64
	ModTime  time.Time
	// Version differs if the key had other bytes.
	Version string
}

// ListOptions select the objects of a listing.
type ListOptions struct {
	// Recursive lists all objects below the folder, and no folders. Otherwise one level is listed; a
	// folder store may list empty folders.
	Recursive bool
	// StartAfter omits keys up to and including this one.
	StartAfter string
	// Beginning begins the names in the folder, with a slash only if Recursive.
	Beginning string
	// Unfinished also lists files of dead writers, for removal.
	Unfinished bool
}

// Reader reads objects.
type Reader interface {
	// List yields the content of a folder, "" or a key that ends in "/". A missing folder is empty. An
	// error comes last. S3 needs a request for 1,000 results.
	List(ctx context.Context, folder string, options ListOptions) iter.Seq2[Object, error]
	// Get opens an object in one request, or fails with ErrNotFound. Reads end with ctx. See VersionOf.
	Get(ctx context.Context, key string) (io.ReadCloser, error)
	// Attributes describes an object in one request, or fails with ErrNotFound.
	Attributes(ctx context.Context, key string) (Object, error)
}

// Versioned is an open object that knows its version.
type Versioned interface{ Version() string }

// VersionOf returns an open object's version as in List; "" if unknown.
func VersionOf(content io.Reader) string {
	if versioned, ok := content.(Versioned); ok {
		return versioned.Version()
	}
	return ""
}

// Ranger also reads parts of objects.
type Ranger interface {
	Reader
	// GetRange opens a part of an object in one request: at least one byte, or to the end with a
	// negative length. A shorter object gives less; one that ends before the part gives nothing, or
	// ErrRange.
	GetRange(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error)
}

// Content is the content of a write, which a retry reads again.
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
	// Create writes a new object, or fails with ErrExists, also after a lost answer, so the caller
	// compares. A success makes this write and all before it durable.
	Create(ctx context.Context, key string, content []byte) error
	Put(ctx context.Context, key string, content []byte) error
	// NewWriter streams a new object, in bounded memory. It is visible after Commit. The end of ctx
	// aborts it.
	NewWriter(ctx context.Context, key string) (ObjectWriter, error)
}

// ObjectWriter writes one object, until Commit or Abort. It is not safe for concurrent use.
type ObjectWriter interface {
	io.Writer
	// Commit, called once, makes the object visible, or fails and leaves nothing. ErrExists may mean
	// this object, after a lost answer.
	Commit() error
	// Abort leaves nothing visible. After Commit it does nothing.
	Abort()
}

// Remover removes objects.
type Remover interface {
	// Delete removes an object in the version of List or Attributes. A missing object is no error; a
	// later object stays, with ErrChanged.
	//
	// S3, GCS and Azure compare and remove atomically. Otherwise a process that is paused in between
	// may remove a later object, and a folder store that is killed in between loses it.
	Delete(ctx context.Context, object Object) error
}
