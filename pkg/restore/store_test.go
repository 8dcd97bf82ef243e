// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"path"
	"strings"
	"testing"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/runlog"
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
	request := request("r1", v1alpha1.RestoreSpec{})
	first := Fail(t.Context(), request, clock.RealClock{}, errors.New("the first reason"))
	first.Status.HookStatus = &v1alpha1.HookStatus{HooksAttempted: 3, HooksFailed: 1}
	second := Fail(t.Context(), request, clock.RealClock{}, errors.New("another reason"))
	for _, ended := range []*Ended{first, second} {
		if err := ended.Store(t.Context(), bucket, request.Run.AsRestore(), cluster, []string{key.PublicKey()}); err != nil {
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

// TestEndOfOthers: what somebody has put in the place of a restore's end does not become it, nor
// keep it from being stored, and is told.
func TestEndOfOthers(t *testing.T) {
	var keys []*format.SigningKey
	for _, b := range []byte{7, 8, 9} {
		key, err := format.ParseSigningKey(bytes.Repeat([]byte{b}, 32))
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, key)
	}
	ours, earlier, theirs := keys[0], keys[1], keys[2]
	request := request("r1", v1alpha1.RestoreSpec{})
	end := func(uid types.UID, phase v1alpha1.RestorePhase, cluster format.Cluster) []byte {
		restore := request.Run.AsRestore()
		restore.UID, restore.Status.Phase, restore.Status.FailureReason = uid, phase, "another end"
		data, err := format.EncodeRestore(restore, nil, cluster)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	us := format.Cluster{UID: "us", Key: ours}
	uid := request.Run.UID
	signed := end(uid, v1alpha1.RestorePhaseFailed, us)
	for name, test := range map[string]struct {
		there    []byte
		believed bool
	}{
		"our own":                    {signed, true},
		"with an earlier key":        {end(uid, v1alpha1.RestorePhaseFailed, format.Cluster{UID: "us", Key: earlier}), true},
		"not signed":                 {end(uid, v1alpha1.RestorePhaseFailed, format.Cluster{UID: "us"}), false},
		"signed by others":           {end(uid, v1alpha1.RestorePhaseFailed, format.Cluster{UID: "us", Key: theirs}), false},
		"of another cluster":         {end(uid, v1alpha1.RestorePhaseFailed, format.Cluster{UID: "them", Key: ours}), false},
		"of another restore of ours": {end("another", v1alpha1.RestorePhaseFailed, us), false},
		"no end":                     {end(uid, v1alpha1.RestorePhaseInProgress, us), false},
		"forged":                     {bytes.Replace(signed, []byte("another end"), []byte("a forged end"), 1), false},
		"no JSON":                    {[]byte("\xff"), false},
		"of another kind":            {[]byte(`{"kind":"` + strings.Repeat("ü", 2000) + `"}`), false},
		"nothing":                    {nil, false},
		"too large":                  {bytes.Repeat([]byte(" "), format.MaxMetadataBytes+1), false},
	} {
		t.Run(name, func(t *testing.T) {
			bucket := storetest.Memory(t)
			key := format.RestoreMetadataKey(request.StoreName())
			if err := bucket.Put(t.Context(), key, test.there); err != nil {
				t.Fatal(err)
			}
			ended := Fail(t.Context(), request, clock.RealClock{}, errors.New("the reason"))
			// The second time is that of another process, or of an answer that was lost.
			for range 2 {
				if err := ended.Store(t.Context(), bucket, request.Run.AsRestore(), us, []string{ours.PublicKey(), earlier.PublicKey()}); err != nil {
					t.Fatal(err)
				}
				want := "the reason"
				if test.believed {
					want = "another end"
				}
				if ended.Status.FailureReason != want || ended.Status.Phase != v1alpha1.RestorePhaseFailed {
					t.Errorf("it has ended as %s: %s", ended.Status.Phase, ended.Status.FailureReason)
				}
				if test.believed != (ended.Replaced == "") || len(ended.Replaced) > 1024 || !utf8.ValidString(ended.Replaced) {
					t.Errorf("it says %q", ended.Replaced)
				}
			}
			content, err := bucket.Get(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = content.Close() }()
			data, err := io.ReadAll(content)
			if err != nil {
				t.Fatal(err)
			}
			stored, contents, origin, err := format.DecodeRestore(data)
			if err != nil || origin.Trust != "" || stored.Status.FailureReason != ended.Status.FailureReason || !test.believed && len(contents) != len(ended.files) {
				t.Errorf("stored is %s, %+v, %v", data, origin, err)
			}
		})
	}
}

// TestEndHasRoom: what is told of a restore is never longer than what readers take, and what it
// has no room for is counted.
func TestEndHasRoom(t *testing.T) {
	list := func() format.ResourceList {
		return format.ResourceList{"v1/ConfigMap": {"a/<1>(created)", "a/\"2\"(created)"}, "v1/Secret": {"a/s(created)"}, "apps/v1/Deployment": {"a/d(created)"}}
	}
	whole, err := json.Marshal(list())
	if err != nil {
		t.Fatal(err)
	}
	for most := range len(whole) + 10 {
		short := list()
		left := shorten(short, most)
		names := 0
		for _, of := range short {
			names += len(of)
		}
		encoded, err := json.Marshal(short)
		if err != nil || len(encoded) > max(most, len("{}")) || names+left != 4 {
			t.Errorf("of %d bytes it has %s, and %d are left out: %v", most, encoded, left, err)
		}
		if most == len(whole)+9 && left > 0 {
			t.Errorf("%d are left out for nothing", left)
		}
	}

	r := newReport(runlog.New(clock.RealClock{}), "a", "holdfast")
	r.room = 1000
	for range 100 {
		r.fail(subject{"secrets", "a", "s"}, "<<<")
	}
	encoded, err := json.Marshal(r.results)
	if kept := r.results.Errors.Count(); err != nil || len(encoded) > 1100 || kept < 10 || r.errors != 100 {
		t.Errorf("%d of %d errors are kept: %s, %v", kept, r.errors, encoded, err)
	}
}

// TestEachActionIsTold: each action has a word in the plan and in the list of what became of objects.
func TestEachActionIsTold(t *testing.T) {
	for a := actionCreate; a <= actionError; a++ {
		if actionNames[a] == "" || became[a] == "" {
			t.Errorf("action %d is %q in the plan, and %q in the list", a, actionNames[a], became[a])
		}
	}
}
