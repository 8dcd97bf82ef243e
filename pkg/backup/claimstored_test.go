// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"testing"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup/archive"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/manifest"
)

func TestStoredClaims(t *testing.T) {
	const source = `"dataSource":{"kind":"VolumeSnapshot","name":"s"},"dataSourceRef":{"kind":"VolumeSnapshot","name":"s"}`
	const selector = `"selector":{"matchLabels":{"velero.io/volume":"x","zone":"a"}}`
	for name, test := range map[string]struct {
		metadata, spec, status           string
		wantMetadata, wantSpec, original string // empty: as it was
	}{
		"plain": {spec: `"volumeName":"pv"`, status: "Bound"},
		"made from a snapshot, with a selector for its class": {
			spec: source + `,"storageClassName":"fast","volumeName":"pv",` + selector, status: "Bound",
			wantSpec: `"storageClassName":"fast","volumeName":"pv"`, original: `{"spec":{` + source + `,` + selector + `}}`,
		},
		"with a selector and no class": {
			spec: selector + `,"storageClassName":"","volumeName":"pv"`, status: "Bound",
			wantSpec: `"selector":{"matchLabels":{"zone":"a"}},"storageClassName":"","volumeName":"pv"`,
			original: `{"spec":{"selector":{"matchLabels":{"velero.io/volume":"x"}}}}`,
		},
		"annotations and labels": {
			metadata: `"annotations":{"mine":"1","pv.kubernetes.io/bind-completed":"yes","volume.kubernetes.io/selected-node":"n1"},"labels":{"app":"db","velero.io/restore-name":"r"},`,
			spec:     `"volumeName":"pv"`, status: "Bound",
			wantMetadata: `"annotations":{"mine":"1"},"labels":{"app":"db"},`, wantSpec: `"volumeName":"pv"`,
			original: `{"metadata":{"annotations":{"pv.kubernetes.io/bind-completed":"yes","volume.kubernetes.io/selected-node":"n1"},"labels":{"velero.io/restore-name":"r"}}}`,
		},
		"not bound": {spec: source, status: "Pending"},
	} {
		t.Run(name, func(t *testing.T) {
			claim := func(metadata, spec string) string {
				return fmt.Sprintf(`"metadata":{%s"name":"data","namespace":"shop","uid":"u"},"spec":{%s},"status":{"phase":%q}}`, metadata, spec, test.status)
			}
			f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}})
			f.add("namespaces", namespace("shop", ""))
			f.add("persistentvolumes", `{"metadata":{"name":"pv"},"spec":{"csi":{}}}`)
			f.add("persistentvolumeclaims", "{"+claim(test.metadata, test.spec))
			f.run(t)
			wantMetadata, wantSpec := test.metadata, test.spec
			if test.original != "" {
				wantMetadata, wantSpec = test.wantMetadata, test.wantSpec
			}
			want := `{"apiVersion":"v1","kind":"PersistentVolumeClaim",` + claim(wantMetadata, wantSpec)
			var stored []byte
			reader, err := archive.NewReader(bytes.NewReader(f.read(t, format.TarballKey("b"))))
			if err != nil {
				t.Fatal(err)
			}
			for {
				entry, err := reader.Next()
				if err != nil {
					break
				}
				if entry.Resource == claimsResource && !entry.Versioned {
					if stored, err = io.ReadAll(reader); err != nil {
						t.Fatal(err)
					}
				}
			}
			if string(stored) != want {
				t.Errorf("stored\n%s, want\n%s", stored, want)
			}
			for item, err := range manifest.Read(bytes.NewReader(f.read(t, format.ManifestKey("b")))) {
				if err != nil {
					t.Fatal(err)
				}
				if item.KindName == "PersistentVolumeClaim" && (string(item.Original) != test.original || item.SHA256 != format.NewContent(stored).SHA256 || item.Labels["velero.io/restore-name"] != "") {
					t.Errorf("in the manifest: %s, %s, %v", item.Original, item.SHA256, item.Labels)
				}
			}
		})
	}
}

// TestHalfFilledClaims: one that a restore has not filled is not taken for whole in silence.
func TestHalfFilledClaims(t *testing.T) {
	f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}})
	f.add("namespaces", namespace("shop", ""))
	f.add("persistentvolumes", `{"metadata":{"name":"pv"},"spec":{"csi":{}}}`)
	f.add("persistentvolumeclaims",
		`{"metadata":{"annotations":{"holdfast.io/incomplete-data":"r new k"},"name":"half","namespace":"shop","uid":"u"},"spec":{"volumeName":"pv"},"status":{"phase":"Bound"}}`,
		`{"metadata":{"name":"whole","namespace":"shop","uid":"v"},"status":{"phase":"Pending"}}`)
	f.add("pods", podWith("p", "", `d "persistentVolumeClaim":{"claimName":"half"}`))
	f.run(t)
	want := []string{"persistentvolumeclaims shop/half: " + halfFilled}
	if got := f.results(t).Warnings.Namespaces["shop"]; !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}
