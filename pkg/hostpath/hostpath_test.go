// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package hostpath

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestOver(t *testing.T) {
	roots := Roots{"/opt/volumes/deep", "/data", "/opt/volumes", "/opt/volumes/a"}
	for path, want := range map[string]string{
		"/data":                   "/data",
		"/data/":                  "/data",
		"/data/a/b":               "/data",
		"//data//a/":              "/data",
		"/opt/volumes/a":          "/opt/volumes",
		"/opt/volumes/deep":       "/opt/volumes",
		"/opt/volumes/deep/a":     "/opt/volumes",
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
		"/opt/./volumes/./deep/.": "/opt/volumes",
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

func TestOn(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", Labels: map[string]string{corev1.LabelHostname: "host-1"}}}
	hosts := func(values ...string) *corev1.VolumeNodeAffinity {
		return &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: values}},
		}}}}
	}
	field := &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"node-1"}}},
	}}}}
	for name, test := range map[string]struct {
		volume *corev1.VolumeNodeAffinity
		want   bool
	}{
		"anywhere":        {nil, true},
		"of nothing":      {&corev1.VolumeNodeAffinity{}, true},
		"on this node":    {hosts("host-0", "host-1"), true},
		"on another node": {hosts("host-0"), false},
		"by its name":     {field, true},
		"on none":         {&corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{}}, false},
	} {
		if got, err := On(test.volume, node); got != test.want || err != nil {
			t.Errorf("a volume %s: %t, %v", name, got, err)
		}
	}
	broken := hosts()
	if on, err := On(broken, node); on || err == nil {
		t.Error("a selector that can't be meant selects")
	}
}
