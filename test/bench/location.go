// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
)

// defaultLocation is where backups are stored that name no location.
const defaultLocation = "default"

// hold lets nothing start: backups come into the queue and wait for their store. It
// returns what lets them go. Both return when the controller knows.
func (l *lab) hold(ctx context.Context) (release func() error, err error) {
	location, err := l.engine.EngineV1alpha1().StorageLocations(namespace).Get(ctx, defaultLocation, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	if location.Spec.Filesystem == nil {
		return nil, errors.New("the default storage location is no folder")
	}
	path := location.Spec.Filesystem.Path
	release = func() error { return l.moveStore(ctx, path, metav1.ConditionTrue) }
	return release, l.moveStore(ctx, path+"-that-is-not-there", metav1.ConditionFalse)
}

// moveStore changes the default location's folder, and waits until the controller
// has looked at it.
func (l *lab) moveStore(ctx context.Context, path string, available metav1.ConditionStatus) error {
	locations := l.engine.EngineV1alpha1().StorageLocations(namespace)
	patch := fmt.Appendf(nil, `{"spec": {"filesystem": {"path": %q}}}`, path)
	moved, err := locations.Patch(ctx, defaultLocation, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return err
	}
	err = wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		location, err := locations.Get(ctx, defaultLocation, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		condition := meta.FindStatusCondition(location.Status.Conditions, enginev1alpha1.ConditionAvailable)
		return condition != nil && condition.ObservedGeneration >= moved.Generation && condition.Status == available, nil
	})
	if err != nil {
		return fmt.Errorf("waiting until the storage location in %s is found to be there or not: %w", path, err)
	}
	return nil
}
