// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/catalog/index"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/identity"
)

// What a backup stores of its volumes is what the catalogue lists of them, and selects them by:
// as it was read, and as an index has it.
func TestVolumesAreListedAsTheyWere(t *testing.T) {
	f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}})
	f.story()
	f.run(t)
	volumes, err := catalog.ReadVolumes(bytes.NewReader(f.read(t, format.PodVolumeBackupsKey("b"))))
	if err != nil {
		t.Fatal(err)
	}
	content := catalog.Content{Backup: f.stored(t), Volumes: volumes, Trusted: true}
	segment, err := index.Encode([]index.Entry{{StoreName: "b", Content: content}})
	if err != nil {
		t.Fatal(err)
	}
	decoded, err := index.Decode(segment)
	if err != nil {
		t.Fatal(err)
	}
	contents := map[string]catalog.Content{"as it was read": content}
	for entry, err := range decoded.Entries(func(string) bool { return true }) {
		if err != nil {
			t.Fatal(err)
		}
		contents["as an index has it"] = entry.Content
	}
	for how, content := range contents {
		history := map[string]*v1alpha1.BackupVolume{}
		c := catalog.New("holdfast", func(changes catalog.Changes) {
			for _, volume := range changes.Volumes.Set {
				history[volume.Name] = volume
			}
		})
		c.SetIdentity(identity.Identity{UID: "c-1"})
		c.SetNamespaces(map[string]types.UID{})
		c.Put("default", "b", content, start)
		for selector, want := range map[string]string{"": "data pod:db-0:scratch", "app=db": "data", "app=web": "", "!app": "pod:db-0:scratch", "zone": ""} {
			parsed, err := labels.Parse(selector)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for row := range c.Snapshot().Rows("", catalog.Position{}, func(catalog.VolumeRows) bool { return true }) {
				if object := row.Object(); parsed.Matches(labels.Set(object.Labels)) {
					name, _, _ := strings.Cut(object.Spec.VolumeName, "@")
					got = append(got, name)
					of := history[object.Spec.VolumeName]
					if name != "data" {
						if of != nil {
							t.Errorf("%s: the volume of a pod is listed as %+v", how, of)
						}
						continue
					}
					if of == nil || fmt.Sprint(of.Labels, of.Status.Labels, of.Status.Volume) != fmt.Sprint(object.Labels, object.Status.Labels, object.Status.Volume) {
						t.Errorf("%s: the volume of %+v is %+v", how, object, of)
					}
					if v := object.Status.Volume; v == nil || v.Name != "pv-data" || v.SizeBytes != 1<<30 || !v.CreationTimestamp.Time.Equal(time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)) {
						t.Errorf("%s: the volume itself is %+v", how, v)
					}
				}
			}
			if text := strings.Join(got, " "); text != want {
				t.Errorf("%s: %q selects %q, want %q", how, selector, text, want)
			}
		}
	}
}

// However many labels claims have, the list of volumes can be read.
func TestLabelsDoNotMakeTheListUnreadable(t *testing.T) {
	volume := format.Volume{ClaimName: "data", ClaimLabels: map[string]string{}}
	volume.Pod.Namespace, volume.Pod.Name, volume.Name = "shop", "web", "data"
	for i := range 190 {
		volume.ClaimLabels[fmt.Sprintf("label-%d", i)] = strings.Repeat("x", 63)
	}
	e := &execution{request: Request{Backup: &v1alpha1.Backup{}}, storeName: "b"}
	for range 5_000 {
		e.volumes = append(e.volumes, &volume)
	}
	var list bytes.Buffer
	if err := format.WritePodVolumeBackups(&list, e.uploads()); err != nil {
		t.Fatal(err)
	}
	read := 0
	err := format.ReadPodVolumeBackups(&list, func(pvb format.PodVolumeBackup) error {
		read++
		if read != 1 && read != len(e.volumes) {
			return nil
		}
		labels := len(format.DecodeVolumeItself(pvb.Itself()).Labels)
		if want := map[int]int{1: 190}[read]; labels != want {
			t.Errorf("volume %d has %d labels, want %d", read, labels, want)
		}
		return nil
	})
	if err != nil || read != len(e.volumes) {
		t.Errorf("%d volumes, %v", read, err)
	}
}
