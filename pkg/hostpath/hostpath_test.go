// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package hostpath

import "testing"

func TestOver(t *testing.T) {
	roots := Roots{"/data", "/opt/volumes", "/opt/volumes/deep"}
	for path, want := range map[string]string{
		"/data":                   "/data",
		"/data/":                  "/data",
		"/data/a/b":               "/data",
		"//data//a/":              "/data",
		"/opt/volumes/a":          "/opt/volumes",
		"/opt/volumes/deep":       "/opt/volumes/deep",
		"/opt/volumes/deep/a":     "/opt/volumes/deep",
		"/opt/volumes/deeper":     "/opt/volumes",
		"/database":               "",
		"/opt":                    "",
		"/":                       "",
		"":                        "",
		"data":                    "",
		"data/a":                  "",
		"/data/../etc":            "",
		"/data/a/../b":            "",
		"/etc/../data":            "",
		"/data/..":                "",
		"/data/..a":               "/data",
		"/mnt/data/a":             "",
		"/opt/./volumes/./deep/.": "/opt/volumes/deep",
	} {
		if got := roots.Over(path); got != want {
			t.Errorf("over %q is %q, want %q", path, got, want)
		}
	}
	if got := (Roots)(nil).Over("/data"); got != "" {
		t.Errorf("without roots there is %q", got)
	}
}

func TestValidate(t *testing.T) {
	if err := (Roots{"/data", "/opt/volumes"}).Validate(); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"", "/", "data", "/data/", "/data/../etc", "//data", "/./data"} {
		if err := (Roots{"/opt", bad}).Validate(); err == nil {
			t.Errorf("%q is a root", bad)
		}
	}
}
