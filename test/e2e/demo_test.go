// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// TestMainJob is the story of make demo.
func TestMainJob(t *testing.T) {
	shop := workload{"shop", "web", nodes[0], 32}
	blog := workload{"blog", "web", nodes[1], 32}
	front := workload{"wiki", "front", nodes[0], 32}
	search := workload{"wiki", "search", nodes[1], 32}
	all := []workload{shop, blog, front, search}

	step("Three namespaces, on two nodes, each with objects and with files in volumes")
	start(t, all...)
	lab.mustShow(t, "get", "pods,pvc", "-A", "-l", "!app.kubernetes.io/name", "-o", "wide")
	type key struct {
		workload
		volume string
	}
	before := map[key]string{}
	for _, w := range all {
		for volume := range volumes {
			before[key{w, volume}] = w.fingerprint(t, volume)
		}
	}

	step("Four backups at once, of which two may run: what waits, and for what?")
	lab.create(t, backup("shop", "shop")+backup("shop-and-blog", "shop", "blog")+backup("wiki", "wiki")+backup("blog", "blog"))
	resume := lab.pauseStore(t, "two backups run and two wait", func(ctx context.Context) error {
		for _, name := range []string{"shop", "wiki"} {
			if _, err := queued(ctx, name, v1alpha1.QueueStateRunning); err != nil {
				return err
			}
		}
		waiting, err := queued(ctx, "shop-and-blog", v1alpha1.QueueStateQueued)
		if err != nil {
			return err
		}
		if s := waiting.Status; s.Reason != v1alpha1.QueueReasonNamespaceOverlap || s.Position != 1 ||
			!slices.Equal(s.Blockers, []v1alpha1.QueueBlocker{{Kind: "Backup", Namespace: system, Name: "shop"}}) ||
			!slices.Equal(s.ConflictNamespaces, []string{"shop"}) {
			return fmt.Errorf("shop-and-blog: %+v", s)
		}
		behind, err := queued(ctx, "blog", v1alpha1.QueueStateQueued)
		if err != nil {
			return err
		}
		if s := behind.Status; s.Position != 2 || s.Reason != v1alpha1.QueueReasonBehindOverlapping ||
			!slices.Equal(s.Blockers, []v1alpha1.QueueBlocker{{Kind: "Backup", Namespace: system, Name: "shop-and-blog"}}) {
			return fmt.Errorf("blog: %+v", s)
		}
		return nil
	})
	lab.mustShow(t, "get", "backupqueue", "-n", system, "-o", "wide")
	resume()

	step("All of them end")
	names := []string{"shop", "shop-and-blog", "wiki", "blog"}
	ended := awaitEnd(t, v1alpha1.BackupPhaseCompleted, names...)
	if first, second := ended["shop"].Status, ended["shop-and-blog"].Status; second.StartTimestamp.Before(first.CompletionTimestamp) {
		t.Errorf("shop-and-blog started at %s, and shop, which it overlaps, ended at %s", second.StartTimestamp, first.CompletionTimestamp)
	}
	awaitStored(t, names...)
	lab.mustShow(t, "get", "backups", "-n", system)
	for _, name := range names {
		if _, err := os.Stat(lab.path("s3", "buckets", bucket, "backups", name, "velero-backup.json")); err != nil {
			t.Errorf("backup %s is not in the bucket: %v", name, err)
		}
	}

	step("What is stored: the volumes, and their history")
	for _, w := range all {
		for volume := range volumes {
			awaitHistory(t, w, volume, w.namespace)
		}
	}
	lab.mustShow(t, "get", "backupvolumes", "-A")
	lab.mustShow(t, "get", "volumebackups", "-A")

	step("The files are lost, and come back")
	for _, w := range all {
		for volume := range volumes {
			w.lose(t, volume)
		}
	}
	for _, w := range all {
		restore(t, w.namespace, w)
		for volume := range volumes {
			if got, want := w.fingerprint(t, volume), before[key{w, volume}]; got != want {
				t.Errorf("%s/%s, volume %s differs:\n%s\nwant:\n%s", w.namespace, w.pod, volume, got, want)
			}
			fmt.Printf("%s/%s, volume %s: %d lines about names, modes, owners, times, links and contents, all as before\n",
				w.namespace, w.pod, volume, strings.Count(before[key{w, volume}], "\n"))
		}
	}

	step("Deleting a namespace takes seconds, and no backup")
	lab.mustShow(t, "delete", "namespace", "wiki", "--timeout=60s")
	lab.mustShow(t, "get", "backups", "-n", system)
	if err := listsAll(t.Context(), names...); err != nil {
		t.Error(err)
	}
	for _, w := range []workload{front, search} {
		for volume := range volumes {
			if _, err := history(t.Context(), w, volume, "wiki"); err != nil {
				t.Error(err)
			}
		}
	}
}
