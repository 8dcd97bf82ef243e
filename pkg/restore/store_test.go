// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"bytes"
	"errors"
	"io"
	"path"
	"testing"

	"k8s.io/utils/clock"

	holdfast "github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// TestStoredOnce: of two ends of one restore the first that is stored stands, signed, with the
// digests of its files; the other one becomes that, and writes none of its own.
func TestStoredOnce(t *testing.T) {
	key, err := format.ParseSigningKey(bytes.Repeat([]byte{7}, 32))
	if err != nil {
		t.Fatal(err)
	}
	bucket, cluster := storetest.Memory(t), format.Cluster{UID: "us", Key: key}
	request := request("r1", holdfast.RestoreSpec{})
	first := Fail(t.Context(), request, clock.RealClock{}, errors.New("the first reason"))
	first.Status.HookStatus = &holdfast.HookStatus{HooksAttempted: 3, HooksFailed: 1}
	second := Fail(t.Context(), request, clock.RealClock{}, errors.New("another reason"))
	for _, ended := range []*Ended{first, second} {
		if err := ended.Store(t.Context(), bucket, request.Run.AsRestore(), cluster); err != nil {
			t.Fatal(err)
		}
		if ended.Status.FailureReason != "the first reason" {
			t.Errorf("it ended for %s", ended.Status.FailureReason)
		}
		if hooks := ended.Status.HookStatus; hooks == nil || *hooks != *first.Status.HookStatus {
			t.Errorf("it ran the hooks %+v", hooks)
		}
		for _, f := range first.files {
			stored, err := bucket.Get(t.Context(), f.key)
			if err != nil {
				t.Fatal(err)
			}
			content, err := io.ReadAll(stored)
			_ = stored.Close()
			if err != nil || !bytes.Equal(content, f.content) || ended.Digests[path.Base(f.key)] != format.NewContent(content).SHA256 {
				t.Errorf("%s is not as the first has written it: %v", f.key, err)
			}
		}
		if len(ended.Digests) != len(first.files) {
			t.Errorf("the digests are %v", ended.Digests)
		}
	}
	metadata, err := bucket.Get(t.Context(), format.RestoreMetadataKey(request.StoreName()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = metadata.Close() }()
	data, err := io.ReadAll(metadata)
	if err != nil {
		t.Fatal(err)
	}
	if _, contents, origin, err := format.DecodeRestore(data); err != nil || origin.Trust != "" || len(contents) != len(first.files) {
		t.Errorf("the metadata is not signed with its contents: %v, %+v, %v", contents, origin, err)
	}
}
