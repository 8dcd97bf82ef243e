// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package longhorn

import (
	"encoding/json"
	"io"
	"time"
)

// LockType is what a lock is for. Locks of one type don't keep each other out.
type LockType int

const (
	// LockBackup is for backups and restores.
	LockBackup LockType = 1
	// LockDeletion is for deletions.
	LockDeletion LockType = 2
)

// How locks are taken, which only works if all do it alike.
const (
	// LockSettles is how long who wants a lock waits until he looks at the others.
	LockSettles = 2 * time.Second
	// LockRefreshed is how often a lock is written again.
	LockRefreshed = time.Minute
	// LockExpires is the age from which a lock counts no more.
	LockExpires = 150 * time.Second
)

// Lock is what the file of a lock says. Whose it is, it does not say; when it was written, the
// store does.
type Lock struct {
	Name     string
	Type     LockType
	Acquired bool
}

// ReadLock reads the file of a lock.
func ReadLock(r io.Reader) (*Lock, error) {
	var l Lock
	err := readObject(r, func(key string) any {
		switch key {
		case "Name":
			return &l.Name
		case "Type":
			return &l.Type
		case "Acquired":
			return &l.Acquired
		}
		return nil
	}, nil)
	return &l, err
}

// Encode gives the file of the lock.
func (l *Lock) Encode() []byte {
	data, err := json.Marshal(l)
	if err != nil {
		panic(err) // there is nothing in it that can't be encoded
	}
	return data
}
