// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package longhorn

import (
	"encoding/json"
	"io"
	"time"
)

// LockType is a lock's purpose. Equal types don't exclude each other.
type LockType int

const (
	LockBackup   LockType = 1
	LockDeletion LockType = 2
)

// The protocol of locks, which all writers follow.
const (
	// LockSettles is the wait after writing a lock, before looking at others.
	LockSettles = 2 * time.Second
	// LockRefreshed is the interval of renewals.
	LockRefreshed = time.Minute
	// LockExpires is the age at which a lock is ignored.
	LockExpires = 150 * time.Second
)

// Lock is the content of a lock's file. It has no owner; the store has its time.
type Lock struct {
	Name     string
	Type     LockType
	Acquired bool
}

// ReadLock reads a lock's file.
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

// Encode returns the lock's file.
func (l *Lock) Encode() []byte {
	data, err := json.Marshal(l)
	if err != nil {
		panic(err)
	}
	return data
}
