// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/cli"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// unsafeRepository makes a repository of a namespace, and waits until it says that its key is only in
// the cluster. It returns the name of its record.
func unsafeRepository(t *testing.T, lab *labtest.Lab, namespace string) string {
	t.Helper()
	name := enginev1alpha1.RepositoryName(namespace, "default")
	records := lab.Engine.EngineV1alpha1().VolumeRepositories(labtest.System)
	if _, err := records.Create(t.Context(), &enginev1alpha1.VolumeRepository{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: enginev1alpha1.VolumeRepositorySpec{VolumeNamespace: namespace, BackupStorageLocation: "default"},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := records.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	awaitKey(t, lab, name, enginev1alpha1.ReasonKeyNotExported)
	return name
}

// TestDoctor checks an installation of its own: nothing is wrong at first, and then each fault is
// named. Users with few rights are told what they may not see.
func TestDoctor(t *testing.T) {
	t.Parallel()
	lab := lab.Another(t)
	lab.Kubectl(t, "delete", "node", "unattended")
	labtest.Eventually(t, "the node to have left the lists", func() error {
		if _, err := lab.Holdfast.HoldfastV1alpha1().NodeAgents().Get(t.Context(), "unattended", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("its agent is still listed: %v", err)
		}
		return nil
	})
	viewer, stranger, namespace := labtest.Name("vic"), labtest.Name("sam"), lab.Namespace(t, "doctor")
	lab.Grant(t, viewer, "view", namespace)
	doctor := func(user string, code int, args []string, want ...string) {
		t.Helper()
		stdout, stderr, got := pluginIn(t, lab, user, append([]string{"doctor", "-n", namespace}, args...)...)
		for _, text := range want {
			if !strings.Contains(strings.Join(strings.Fields(stdout), " "), text) {
				t.Errorf("without %q: %s", text, stdout)
			}
		}
		if got != code {
			t.Errorf("exit code %d, want %d: %s%s", got, code, stdout, stderr)
		}
	}
	doctor("", cli.ExitOK, nil, "the newest trusted certificate", "the apiserver works; the controller works", "NodeRestriction is on", "Nothing is wrong")
	doctor(viewer, cli.ExitOK, nil, "you have the rights of holdfast-view", "you may not list storagelocations in "+labtest.System, "you may not list nodeagents", "Nothing is wrong")
	doctor(stranger, cli.ExitFailed, nil, "you may not see backups in the namespace "+namespace, "--clusterrole=view")
	stdout, _, code := pluginIn(t, lab, "", "doctor", "-o", "json")
	var found struct{ Healthy bool }
	if err := json.Unmarshal([]byte(stdout), &found); err != nil || !found.Healthy || code != cli.ExitOK {
		t.Errorf("exit code %d, %v: %s", code, err, stdout)
	}

	location, folder := lab.Location(t, "down")
	name := unsafeRepository(t, lab, namespace)
	if err := os.RemoveAll(folder); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.MkdirAll(folder, 0o755) })
	// A change has it checked at once.
	lab.Kubectl(t, "patch", "storagelocation", location, "-n", labtest.System, "--type=merge", "-p", `{"spec":{"pollInterval":"1h"}}`)
	lab.AwaitAvailable(t, location, metav1.ConditionFalse)
	if _, stderr, code := pluginIn(t, lab, "", "schedule", "create", "nightly", "-n", namespace, "--schedule", "0 2 * * *", "--paused"); code != cli.ExitOK {
		t.Error(stderr)
	}
	doctor("", cli.ExitFailed, nil, "error: storagelocation/"+location, "it is not available", "warning: volumerepository/"+name, "its key is not backed up, NotExported", "note: schedule/nightly in "+namespace)
}
