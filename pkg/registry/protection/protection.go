// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package protection shows which workloads and claims have a good backup. A backup holds an object if its signed
// manifest has the object's uid, and the object was made before the backup began to read. It holds a claim's data
// if the catalogue has it, too. So an error shows too little protection, never too much.
package protection

import (
	"time"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/registry/virtual"
)

type row = *v1alpha1.Protection

// Resource defines protections.
var Resource = virtual.Resource[row]{
	GroupResource: v1alpha1.Resource("protections"),
	Singular:      "protection",
	ShortNames:    []string{"hfp"},
	Categories:    []string{"holdfast"},
	Namespaced:    true,
	Object:        &v1alpha1.Protection{},
	List:          &v1alpha1.ProtectionList{},
	Fields: map[string]func(row) string{
		"spec.kind":        func(p row) string { return p.Spec.Kind },
		"spec.name":        func(p row) string { return p.Spec.Name },
		"status.protected": func(p row) string { return string(p.Status.Protected) },
	},
	Columns: []virtual.Column[row]{
		virtual.Name[row](),
		virtual.Text("Protected", "Yes, Late, UNPROTECTED or Unknown.", func(p row) string { return string(p.Status.Protected) }),
		virtual.Timed("Objects", "The last good backup that holds the object, and the time since it began.", func(p row, now time.Time) string {
			return by(p, p.Status.Objects, now)
		}),
		virtual.Timed("Data", "For a claim, the last good backup that holds its data, and the time since it began.", func(p row, now time.Time) string {
			if p.Spec.Kind != "PersistentVolumeClaim" {
				return ""
			}
			return by(p, p.Status.Data, now)
		}),
		virtual.Text("Schedule", "The schedule with the shortest interval that selects the object.", schedule),
		virtual.Wide(virtual.Text("Expected", "How old the last good backup may be, and by what.", func(p row) string {
			return p.Status.Expectation.String() + " " + p.Status.ExpectedBy
		})),
		virtual.Wide(virtual.Text("Message", "Why it is not Yes.", func(p row) string { return p.Status.Message })),
	},
}

// by names a backup, its namespace if another, and its age.
func by(p row, of *v1alpha1.ProtectedBy, now time.Time) string {
	if of == nil {
		return "none"
	}
	name := "another backup"
	switch ref := of.Backup; {
	case ref.Namespace == p.Namespace && ref.Name != "":
		name = ref.Name
	case ref.Name != "":
		name = ref.Namespace + "/" + ref.Name
	}
	return name + " (" + virtual.Age(&of.Timestamp, now) + ")"
}

func schedule(p row) string {
	switch of := p.Status.Schedule; {
	case of == nil:
		return ""
	case of.Name == "":
		return "another schedule"
	case of.Namespace == p.Namespace:
		return of.Name
	default:
		return of.Namespace + "/" + of.Name
	}
}
