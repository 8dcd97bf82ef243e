// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"io"
	"strings"
	"testing"
)

func TestOutputIsBounded(t *testing.T) {
	var b bounded
	if _, err := io.Copy(&b, strings.NewReader(strings.Repeat("x", 3*maxOutput))); err != nil {
		t.Fatal(err)
	}
	if text := b.text(); len(text) > maxOutput+40 || !strings.HasSuffix(text, "... and 8192 bytes more") {
		t.Errorf("%d bytes, ends with %q", len(text), text[len(text)-30:])
	}
}
