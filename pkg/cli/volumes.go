// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	holdfastclient "github.com/holdfast-io/holdfast/pkg/generated/holdfast/clientset/versioned/typed/holdfast/v1alpha1"
)

type holdfast struct {
	holdfastclient.HoldfastV1alpha1Interface
	namespace string
}

func (t *tool) volumesCommand() *cobra.Command {
	var o output
	command := &cobra.Command{
		Use: "volumes [NAME]", Short: "List the volumes that have backups, or the history of one",
		ValidArgsFunction: t.completeNames("backupvolumes"),
		Args: func(command *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usage("got %d names, want one at most", len(args))
			}
			return nil
		},
		RunE: func(command *cobra.Command, args []string) error {
			if len(args) == 0 {
				return t.get(command.Context(), "backupvolumes", nil, o)
			}
			o.fields = strings.TrimPrefix(o.fields+",spec.volumeName="+args[0], ",")
			return t.get(command.Context(), volumeBackups, nil, o)
		},
	}
	o.addTo(command, true)
	command.AddCommand(
		t.deleteVolumeCommand("backupvolumes", "delete", "Delete all backups of a volume, for good", func(ctx context.Context, client holdfast, name string) (types.UID, string, error) {
			volume, err := client.BackupVolumes(client.namespace).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return "", "", err
			}
			return volume.UID, fmt.Sprintf("All backups of the volume %s in %s are deleted, for good. The backups of its namespace stay, without it.", name, client.namespace), nil
		}),
		t.deleteVolumeCommand(volumeBackups, "delete-backup", "Delete one backup of a volume, for good", func(ctx context.Context, client holdfast, name string) (types.UID, string, error) {
			backup, err := client.VolumeBackups(client.namespace).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return "", "", err
			}
			return backup.UID, fmt.Sprintf("The backup %s of a volume in %s is deleted, for good. The backup that it is part of stays, without it.", name, client.namespace), nil
		}),
	)
	return command
}

// deleteVolumeCommand asks with the sentence of shown, and deletes the shown object.
func (t *tool) deleteVolumeCommand(resource, use, short string, shown func(ctx context.Context, client holdfast, name string) (types.UID, string, error)) *cobra.Command {
	var yes bool
	command := t.named(resource, use, short, func(ctx context.Context, name string) error {
		client, namespace, err := t.client()
		if err != nil {
			return err
		}
		uid, sentence, err := shown(ctx, holdfast{client.HoldfastV1alpha1(), namespace}, name)
		if err != nil {
			return err
		}
		if err := t.confirmName(ctx, yes, sentence, name); err != nil {
			return err
		}
		return t.ask(ctx, resource, name, "deletion", &v1alpha1.VolumeDeletion{
			TypeMeta: typed("VolumeDeletion"), Preconditions: &v1alpha1.VolumeDeletionPreconditions{UID: uid},
		})
	})
	command.Flags().BoolVarP(&yes, "yes", "y", false, "Do not ask.")
	return command
}
