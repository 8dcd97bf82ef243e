// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/validation"
	enginelisters "github.com/holdfast-io/holdfast/pkg/generated/engine/listers/engine/v1alpha1"
)

// DefaultTTL is how long a backup is kept that says nothing of it.
const DefaultTTL = 30 * 24 * time.Hour

// strategy fills in and checks Backups that are to be created.
type strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
	systemNamespace string
	locations       enginelisters.StorageLocationNamespaceLister
}

var _ rest.RESTCreateStrategy = &strategy{}

func (s *strategy) NamespaceScoped() bool { return true }

// PrepareForCreate fills in the defaults, which are recorded with the request: a
// later change of the default location does not move a backup that waits.
func (s *strategy) PrepareForCreate(_ context.Context, obj runtime.Object) {
	backup := obj.(*v1alpha1.Backup)
	backup.Status = v1alpha1.BackupStatus{}
	spec := &backup.Spec
	if len(spec.IncludedNamespaces) == 0 && backup.Namespace != s.systemNamespace {
		spec.IncludedNamespaces = []string{backup.Namespace}
	}
	if spec.TTL.Duration == 0 {
		spec.TTL = metav1.Duration{Duration: DefaultTTL}
	}
	if spec.StorageLocation == "" {
		spec.StorageLocation = s.defaultLocation()
	}
}

// Validate implements rest.RESTCreateStrategy. It checks what costs no more than
// reading the request did; the rest is for check, when the creator's rights are known.
func (s *strategy) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	return validation.ValidateBackupLimits(obj.(*v1alpha1.Backup))
}

// check says what is wrong with a Backup that is to be created.
func (s *strategy) check(backup *v1alpha1.Backup) field.ErrorList {
	errs := validation.ValidateBackup(backup)
	at := field.NewPath("spec", "storageLocation")
	if name := backup.Spec.StorageLocation; name == "" {
		errs = append(errs, field.Required(at, "no storage location is marked as default: name one, or set spec.default on a StorageLocation"))
	} else if _, err := s.locations.Get(name); err != nil {
		notFound := field.NotFound(at, name)
		notFound.Detail = fmt.Sprintf("no such StorageLocation in namespace %q", s.systemNamespace)
		errs = append(errs, notFound)
	}
	return errs
}

// WarningsOnCreate implements rest.RESTCreateStrategy.
func (s *strategy) WarningsOnCreate(_ context.Context, obj runtime.Object) []string {
	backup := obj.(*v1alpha1.Backup)
	location, err := s.locations.Get(backup.Spec.StorageLocation)
	if err != nil {
		return nil
	}
	for _, condition := range location.Status.Conditions {
		if condition.Type == enginev1alpha1.ConditionAvailable && condition.Status == metav1.ConditionFalse {
			return []string{fmt.Sprintf("spec.storageLocation: %q is unavailable; the backup waits until it is back", location.Name)}
		}
	}
	return nil
}

// Canonicalize implements rest.RESTCreateStrategy.
func (s *strategy) Canonicalize(runtime.Object) {}

// defaultLocation is the first location, by name, that is marked as default.
func (s *strategy) defaultLocation() string {
	locations, err := s.locations.List(labels.Everything())
	if err != nil {
		return ""
	}
	var defaults []string
	for _, location := range locations {
		if location.Spec.Default {
			defaults = append(defaults, location.Name)
		}
	}
	if len(defaults) == 0 {
		return ""
	}
	return slices.Min(defaults)
}
