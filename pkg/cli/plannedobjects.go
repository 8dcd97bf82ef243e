// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// showPlannedObjects prints the objects of a backup's plan as they come, then the plan.
func (t *tool) showPlannedObjects(ctx context.Context, backup *v1alpha1.Backup) error {
	client, _, err := t.client()
	if err != nil {
		return err
	}
	name := cmp.Or(backup.Name, backup.GenerateName+"plan")
	backup.TypeMeta = typed("Backup")
	body, err := json.Marshal(backup)
	if err != nil {
		return err
	}
	answer, err := client.HoldfastV1alpha1().RESTClient().Post().Namespace(backup.Namespace).Resource(backups).Name(name).SubResource("plan").
		SetHeader("Content-Type", "application/json").Body(body).Stream(ctx)
	if err != nil {
		return err
	}
	defer answer.Close()
	plan, err := printPlannedObjects(t.Out, answer)
	if err != nil {
		return fmt.Errorf("the plan of %s broke off, and is not complete: %w", name, err)
	}
	if _, err := fmt.Fprintln(t.Out); err != nil {
		return err
	}
	return printBackupPlan(t.Out, plan)
}

// printPlannedObjects prints each object of an answer, and returns its plan. It keeps one object in memory.
func printPlannedObjects(to io.Writer, answer io.Reader) (plan *v1alpha1.BackupPlan, err error) {
	tokens := json.NewDecoder(answer)
	if _, err := tokens.Token(); err != nil {
		return nil, err
	}
	for tokens.More() {
		field, err := tokens.Token()
		if err != nil {
			return nil, err
		}
		if field != "items" {
			if err := tokens.Decode(&plan); err != nil {
				return nil, err
			}
			continue
		}
		if _, err := tokens.Token(); err != nil {
			return nil, err
		}
		for tokens.More() {
			var of v1alpha1.PlannedRelated
			if err := tokens.Decode(&of); err != nil {
				return nil, err
			}
			text := fmt.Sprintf("%s/%s/%s", cmp.Or(of.Namespace, "-"), of.Resource, cmp.Or(of.Name, "(hidden)"))
			if of.Reason != "" {
				text += " (" + of.Reason + ")"
			}
			if _, err := fmt.Fprintln(to, text); err != nil {
				return nil, err
			}
		}
		if _, err := tokens.Token(); err != nil {
			return nil, err
		}
	}
	if _, err := tokens.Token(); err != nil {
		return nil, err
	}
	if plan == nil {
		return nil, errors.New("it has no plan")
	}
	return plan, nil
}
