// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// TestLongTablesAreInOrder: kubectl asks for pages of 500, and what it prints is in the order of
// the table all the same: the queue by its positions, and backups with the newest first.
func TestLongTablesAreInOrder(t *testing.T) {
	const rows = 700
	location, folder := lab.Location(t, "tables")
	if err := os.Rename(folder, folder+"-away"); err != nil {
		t.Fatal(err)
	}
	lab.AwaitAvailable(t, location, metav1.ConditionFalse)
	prefix := labtest.Name("row")
	var creating errgroup.Group
	creating.SetLimit(8)
	backups := lab.Holdfast.HoldfastV1alpha1().Backups(labtest.System)
	for i := range rows {
		creating.Go(func() error {
			// Names that are in another order than the positions.
			_, err := backups.Create(t.Context(), &v1alpha1.Backup{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%03d", prefix, i*337%rows)},
				Spec:       v1alpha1.BackupSpec{IncludedNamespaces: []string{"default"}, StorageLocation: location},
			}, metav1.CreateOptions{})
			return err
		})
	}
	if err := creating.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for i := range rows {
			_ = lab.Engine.EngineV1alpha1().BackupRuns(labtest.System).Delete(context.Background(), fmt.Sprintf("%s-%03d", prefix, i), metav1.DeleteOptions{})
		}
	})
	selector := "--field-selector=spec.storageLocation=" + location
	labtest.Eventually(t, "all to wait", func() error {
		lines := strings.Split(strings.TrimSpace(lab.Kubectl(t, "get", "bq", "-n", labtest.System, "--no-headers", selector)), "\n")
		if len(lines) != rows {
			return fmt.Errorf("the queue has %d rows, want %d", len(lines), rows)
		}
		last := 0
		for _, line := range lines {
			position, err := strconv.Atoi(strings.Fields(line)[0])
			if err != nil {
				return fmt.Errorf("%q has no position: %w", line, err)
			}
			if position <= last {
				return fmt.Errorf("the position %d comes after %d", position, last)
			}
			last = position
		}
		return nil
	})
	created := map[string]time.Time{}
	list, err := backups.List(t.Context(), metav1.ListOptions{FieldSelector: "spec.storageLocation=" + location})
	if err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		created[list.Items[i].Name] = list.Items[i].CreationTimestamp.Time
	}
	lines := strings.Split(strings.TrimSpace(lab.Kubectl(t, "get", "hfb", "-n", labtest.System, "--no-headers", selector)), "\n")
	if len(lines) != rows || len(created) != rows {
		t.Fatalf("%d rows of %d backups, want %d", len(lines), len(created), rows)
	}
	before := ""
	for _, line := range lines {
		name := strings.Fields(line)[0]
		if before != "" && created[name].After(created[before]) {
			t.Fatalf("%s, of %s, comes after %s, of %s", name, created[name], before, created[before])
		}
		before = name
	}
}
