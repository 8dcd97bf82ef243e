// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package volumework

import (
	"testing"
	"time"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
)

// An upload knows when the snapshot that it reads was cut.
func TestCutOfAnUpload(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for text, want := range map[string]time.Time{
		`{"Snapshot":"s","Handle":"h","Time":"2026-01-02T03:04:05Z","Size":5}`: at,
		"": {},
	} {
		record := &enginev1alpha1.VolumeUpload{}
		record.Annotations = map[string]string{enginev1alpha1.AnnotationCut: text}
		if got := cutOf(record); !got.Equal(want) {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
}
