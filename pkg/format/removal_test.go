// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package format

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestRemovalRoundTrip(t *testing.T) {
	want := Removal{UID: "uid-1", StoreName: "shop.daily", Snapshots: []string{"a", "b"}, RequestedAt: time.Unix(1_700_000_000, 0).UTC()}
	data, err := EncodeRemoval(want)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := DecodeRemoval(data); err != nil || !cmp.Equal(got, want) {
		t.Errorf("%+v comes back as %+v, %v", want, got, err)
	}
	for name, data := range map[string]string{
		"no JSON":       "<html>",
		"no uid":        `{"storeName":"daily"}`,
		"no store name": `{"uid":"uid-1"}`,
		"a bad name":    `{"uid":"uid-1","storeName":"../daily"}`,
		"no list":       `{"uid":"uid-1","storeName":"daily","snapshots":"a"}`,
		"too much":      `{"uid":"` + strings.Repeat("x", MaxRemovalBytes) + `","storeName":"daily"}`,
	} {
		if got, err := DecodeRemoval([]byte(data)); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestVolumeRemovalRoundTrip(t *testing.T) {
	want := VolumeRemoval{Request: "r", Backups: []RemovalOf{{UID: "uid-1", StoreName: "shop.daily"}, {UID: "uid-2", StoreName: "weekly"}}}
	data, err := EncodeVolumeRemoval(want)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := DecodeVolumeRemoval(data); err != nil || !cmp.Equal(got, want) {
		t.Errorf("%+v comes back as %+v, %v", want, got, err)
	}
	for name, data := range map[string]string{
		"no JSON":    "<html>",
		"no list":    `{"request":"r","backups":"a"}`,
		"no uid":     `{"backups":[{"uid":"uid-1","storeName":"daily"},{"storeName":"daily"}]}`,
		"a bad name": `{"backups":[{"uid":"uid-1","storeName":"daily"},{"uid":"uid-1","storeName":"../daily"}]}`,
	} {
		if got, err := DecodeVolumeRemoval([]byte(data)); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
