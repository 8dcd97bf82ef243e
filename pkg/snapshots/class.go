// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshots

import (
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// Velero's names for a class, which users know.
const (
	// LabelClass marks the class of its driver, with any value. As an annotation it names a claim's class.
	LabelClass        = "velero.io/csi-volumesnapshot-class"
	annotationDefault = "snapshot.storage.kubernetes.io/is-default-class"
)

// Wishes are classes that users have named, or empty.
type Wishes struct {
	Policy, Claim, Backup string
}

// Class returns the class for a driver's volume: the policy's, the claim's, the backup's, the one with LabelClass,
// the cluster's default, or the only class of the driver. It fails if a named class is missing or two candidates
// are equal: another class may cost more or keep less.
func Class(driver string, wishes Wishes, all []VolumeSnapshotClass) (*VolumeSnapshotClass, error) {
	for _, wish := range []struct{ by, name string }{
		{"the volume policy", wishes.Policy}, {"the claim's annotation " + LabelClass, wishes.Claim}, {"the backup's annotation " + v1alpha1.AnnotationSnapshotClassOf + driver, wishes.Backup},
	} {
		if wish.name != "" {
			return named(driver, wish.by, wish.name, all)
		}
	}
	var labelled, defaults, of []*VolumeSnapshotClass
	for i := range all {
		class := &all[i]
		if class.Driver != driver {
			continue
		}
		of = append(of, class)
		if _, found := class.Labels[LabelClass]; found {
			labelled = append(labelled, class)
		}
		if class.Annotations[annotationDefault] == "true" {
			defaults = append(defaults, class)
		}
	}
	switch {
	case len(labelled) == 1:
		return labelled[0], nil
	case len(labelled) > 1:
		return nil, fmt.Errorf("%d VolumeSnapshotClasses of the driver %s have the label %s, and one is wanted: remove it from all but one of %s", len(labelled), driver, LabelClass, names(labelled))
	case len(defaults) == 1:
		return defaults[0], nil
	case len(defaults) > 1:
		return nil, fmt.Errorf("%d VolumeSnapshotClasses of the driver %s are the default, and one is wanted: label one of %s with %s", len(defaults), driver, names(defaults), LabelClass)
	case len(of) == 1:
		return of[0], nil
	case len(of) > 1:
		return nil, fmt.Errorf("the driver %s has %d VolumeSnapshotClasses, none of them marked: label one of %s with %s", driver, len(of), names(of), LabelClass)
	}
	return nil, fmt.Errorf("there is no VolumeSnapshotClass of the driver %s: create one, or leave its volumes out of the snapshots by a volume policy", driver)
}

func named(driver, by, name string, all []VolumeSnapshotClass) (*VolumeSnapshotClass, error) {
	i := slices.IndexFunc(all, func(class VolumeSnapshotClass) bool { return class.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("%s names the VolumeSnapshotClass %.253s for the driver %s, which does not exist: create it, or name another", by, name, driver)
	}
	if of := all[i].Driver; of != driver {
		return nil, fmt.Errorf("%s names the VolumeSnapshotClass %s, which is of the driver %s and the volume of %s: name a class of %[4]s", by, name, of, driver)
	}
	return &all[i], nil
}

func names(classes []*VolumeSnapshotClass) string {
	var all []string
	for _, class := range classes {
		all = append(all, class.Name)
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}
