// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

const ownComponents = "holdfast-"

func (s subject) isEvent() bool {
	return s.resource.Resource == "events" && (s.resource.Group == "" || s.resource.Group == "events.k8s.io")
}

// isOwnEvent reports an event about or from Holdfast. Otherwise each backup would hold events of
// earlier ones.
func isOwnEvent(raw []byte) bool {
	type object struct {
		APIVersion string `json:"apiVersion"`
	}
	type source struct {
		Component string `json:"component"`
	}
	var event struct {
		// The two groups name the fields differently.
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
