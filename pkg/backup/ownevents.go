// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// ownComponents is how the names of Holdfast's components begin, in the events that they report.
const ownComponents = "holdfast-"

// isEvent reports whether an object is an event, in either of the groups that serve it.
func (s subject) isEvent() bool {
	return s.resource.Resource == "events" && (s.resource.Group == "" || s.resource.Group == "events.k8s.io")
}

// isOwnEvent reports whether an event is about a backup, a restore or another object of
// Holdfast's, or was reported by Holdfast. What tells of making a backup is no part of it: each
// backup would hold the story of those before it.
func isOwnEvent(raw []byte) bool {
	type object struct {
		APIVersion string `json:"apiVersion"`
	}
	type source struct {
		Component string `json:"component"`
	}
	var event struct {
		// The fields have other names in each of the two groups.
		InvolvedObject      object `json:"involvedObject"`
		Regarding           object `json:"regarding"`
		ReportingComponent  string `json:"reportingComponent"`
		ReportingController string `json:"reportingController"`
		Source              source `json:"source"`
		DeprecatedSource    source `json:"deprecatedSource"`
	}
	if err := decode(raw, &event); err != nil {
		return false
	}
	for _, about := range []object{event.InvolvedObject, event.Regarding} {
		if gv, err := schema.ParseGroupVersion(about.APIVersion); err == nil && ownGroups.Has(gv.Group) {
			return true
		}
	}
	for _, by := range []string{event.ReportingComponent, event.ReportingController, event.Source.Component, event.DeprecatedSource.Component} {
		if strings.HasPrefix(by, ownComponents) {
			return true
		}
	}
	return false
}
