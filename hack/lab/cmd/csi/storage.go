// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Kinds are the folders of a storage.
const (
	volumes   = "volumes"
	snapshots = "snapshots"
)

// storage keeps volumes and snapshots: KIND/ID/data has the files, KIND/ID/about.json the rest. A
// folder appears and goes as a whole. Names with a dot before are not whole.
type storage struct {
	folder string

	mu sync.Mutex
	// busy has a lock for each id that is being made.
	busy map[string]*sync.Mutex
}

// about describes a volume or a snapshot.
type about struct {
	ID string `json:"id"`
	// Source is the volume of a snapshot, or the snapshot or volume that a volume is a copy of.
	Source string `json:"source,omitempty"`
	// Size is what was asked for, in bytes.
	Size int64 `json:"size"`
	// Device says that it is a block device: data is a file with its bytes.
	Device  bool      `json:"device,omitempty"`
	Created time.Time `json:"created"`
}

// newStorage removes what an earlier process has not finished. Without a folder there is none.
func newStorage(folder string) (*storage, error) {
	s := &storage{folder: folder, busy: map[string]*sync.Mutex{}}
	if folder == "" {
		return s, nil
	}
	for _, kind := range []string{volumes, snapshots} {
		if err := os.MkdirAll(filepath.Join(folder, kind), 0o711); err != nil {
			return nil, err
		}
		unfinished, err := filepath.Glob(filepath.Join(folder, kind, ".*"))
		if err != nil {
			return nil, err
		}
		for _, path := range unfinished {
			if err := os.RemoveAll(path); err != nil {
				return nil, err
			}
		}
	}
	return s, nil
}

func (s *storage) path(kind, id string) string { return filepath.Join(s.folder, kind, id) }

func (s *storage) data(kind, id string) string { return filepath.Join(s.path(kind, id), "data") }

// validID reports whether an id can be the name of a folder.
func validID(id string) bool {
	return id != "" && id == filepath.Base(id) && !strings.HasPrefix(id, ".") && len(id) <= 128
}

// lock waits until nobody else works on an id.
func (s *storage) lock(kind, id string) (unlock func()) {
	s.mu.Lock()
	key := kind + "/" + id
	of := s.busy[key]
	if of == nil {
		of = &sync.Mutex{}
		s.busy[key] = of
	}
	s.mu.Unlock()
	of.Lock()
	return of.Unlock
}

// load fails with codes.NotFound for an unknown id.
func (s *storage) load(kind, id string) (about, error) {
	var a about
	unknown := status.Errorf(codes.NotFound, "there is no %q among the %s", id, kind)
	if s.folder == "" || !validID(id) {
		return a, unknown
	}
	content, err := os.ReadFile(filepath.Join(s.path(kind, id), "about.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return a, unknown
	}
	if err != nil {
		return a, err
	}
	return a, json.Unmarshal(content, &a)
}

// list returns all of a kind, sorted by id.
func (s *storage) list(kind string) (all []about, err error) {
	entries, err := os.ReadDir(filepath.Join(s.folder, kind))
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		a, err := s.load(kind, entry.Name())
		if status.Code(err) == codes.NotFound { // unfinished, or gone by now
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, a)
	}
	return all, nil
}

// make makes a folder, with a copy of the files in another one, if that is named.
func (s *storage) make(ctx context.Context, kind string, a about, from string) (err error) {
	part, err := os.MkdirTemp(filepath.Join(s.folder, kind), "."+a.ID+"-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(part))
		}
	}()
	data := filepath.Join(part, "data")
	if a.Device {
		err = os.WriteFile(data, nil, 0o600)
	} else {
		err = errors.Join(os.Mkdir(data, 0o777), os.Chmod(data, 0o777)) // whatever the umask is
		if from != "" {
			from += "/." // its files
		}
	}
	if err := errors.Join(err, os.Chmod(part, 0o711)); err != nil {
		return err
	}
	if from != "" {
		if out, err := exec.CommandContext(ctx, "cp", "-a", "--reflink=auto", "--sparse=always", from, data).CombinedOutput(); err != nil {
			return fmt.Errorf("copy %s: %w: %s", from, err, out)
		}
	}
	if a.Device {
		if err := os.Truncate(data, a.Size); err != nil {
			return err
		}
	}
	content, err := json.Marshal(a)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(part, "about.json"), content, 0o644); err != nil {
		return err
	}
	return os.Rename(part, s.path(kind, a.ID))
}

// remove removes a folder, if there is one.
func (s *storage) remove(kind, id string) error {
	if !validID(id) {
		return nil
	}
	defer s.lock(kind, id)()
	gone, err := os.MkdirTemp(filepath.Join(s.folder, kind), "."+id+"-")
	if err != nil {
		return err
	}
	if err := os.Rename(s.path(kind, id), filepath.Join(gone, "it")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(err, os.RemoveAll(gone))
	}
	return os.RemoveAll(gone)
}
