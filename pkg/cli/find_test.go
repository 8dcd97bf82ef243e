// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// TestEqualVersionsAreFolded: a version is listed once, with all backups that hold it. An object that
// was made anew is another one.
func TestEqualVersionsAreFolded(t *testing.T) {
	list := &v1alpha1.BackupObjectList{}
	for _, of := range []struct{ backup, uid, digest string }{{"d", "2", "x"}, {"c", "1", "y"}, {"b", "1", "x"}, {"a", "1", "y"}} {
		list.Items = append(list.Items, v1alpha1.BackupObject{Spec: v1alpha1.BackupObjectSpec{
			Kind: "ConfigMap", Name: "conf", Backup: of.backup, SHA256: of.digest, UID: types.UID(of.uid),
		}})
	}
	var got []string
	for _, of := range (&tool{}).versions(list, false) {
		got = append(got, fmt.Sprintf("%s %s %v", of.newest.Spec.UID, of.newest.Spec.SHA256, of.backups))
	}
	if want := []string{"2 x [d]", "1 y [c a]", "1 x [b]"}; !slices.Equal(got, want) {
		t.Errorf("the versions are %q, want %q", got, want)
	}
}
