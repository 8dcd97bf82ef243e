// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A repository that a later version has changed, while this one has it open, fails what is
// done with it. Kopia's default is to end the process, and with it all other work of a node.
func TestRepositoryOfTheFuture(t *testing.T) {
	loc, key := filesystemLocation(t), NewKey()
	if err := Create(t.Context(), loc, namespace, key); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		r := open1(t, loc, key, Options{})
		defer r.Close(t.Context())
		put(t, r)

		later := open1(t, loc, key, Options{})
		formats := later.Kopia().FormatManager()
		parameters, err := formats.GetMutableParameters(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		storage, err := formats.BlobCfgBlob(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		required, err := formats.RequiredFeatures(t.Context())
		if err == nil {
			err = json.Unmarshal([]byte(`[{"feature": "time travel"}]`), &required)
		}
		if err == nil {
			err = formats.SetParameters(t.Context(), parameters, storage, required)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := later.Close(t.Context()); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Hour) // until the first one has learnt of it
		if _, err := r.put(t); err == nil || !strings.Contains(err.Error(), "time travel") {
			t.Errorf("it goes on: %v", err)
		}
	})
}
