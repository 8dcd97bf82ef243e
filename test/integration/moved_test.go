// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// putMoved puts a store of Velero's into a folder, whose backup has volumes that its data mover has
// uploaded. It returns the paths of one volume's files with their checksums.
func putMoved(t *testing.T, folder string) map[string]string {
	t.Helper()
	file, err := os.Open("../../pkg/restore/source/testdata/velero-moved.tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	unpacked, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	sums := map[string]string{}
	var metadata []byte
	for entries := tar.NewReader(unpacked); ; {
		header, err := entries.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(entries)
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case header.Typeflag != tar.TypeReg:
		case header.Name == "volume.checks":
			for line := range strings.Lines(string(content)) {
				if sum, path, ok := strings.Cut(strings.TrimSpace(line), "  ./"); ok {
					sums[path] = sum
				}
			}
		case strings.HasSuffix(header.Name, "/velero-backup.json"):
			metadata = content
		case strings.HasPrefix(header.Name, "kopia/"): // as Kopia names a file in a folder
			put(t, folder, header.Name+".f", content)
		default:
			put(t, folder, header.Name, content)
		}
	}
	put(t, folder, "kopia/ware/.shards", []byte(`{"default":[],"maxNonShardedLength":20}`))
	put(t, folder, "backups/v-moved/velero-backup.json", metadata) // last, as Velero does
	return sums
}

// TestMovedByVelero: the claims whose snapshots Velero's data mover has uploaded come back with their
// files, also one that no pod used. All are listed with their method. A restore names those that it can't
// bring back, with the reason.
func TestMovedByVelero(t *testing.T) {
	t.Parallel()
	location, folder := lab.Location(t, "velero")
	key := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: enginev1alpha1.KeySecretName(enginev1alpha1.RepositoryName("ware", location))},
		StringData: map[string]string{enginev1alpha1.KeySecretKey: "static-passw0rd"},
	}
	if _, err := lab.Kube.CoreV1().Secrets(enginev1alpha1.KeysNamespace(labtest.System)).Create(t.Context(), key, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	sums := putMoved(t, folder)
	labtest.Eventually(t, "Velero's backup to be listed", func() error {
		_, err := lab.Holdfast.HoldfastV1alpha1().Backups(labtest.System).Get(t.Context(), "v-moved", metav1.GetOptions{})
		return err
	})
	listed, err := lab.Holdfast.HoldfastV1alpha1().VolumeBackups(labtest.System).List(t.Context(), metav1.ListOptions{FieldSelector: "spec.storageLocation=" + location})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"data": "csi-snapshot-moved Completed ", "idle": "csi-snapshot-moved Completed ", "raw": "csi-snapshot-moved Completed ",
		"failed": "csi-snapshot-moved Failed Velero says", "vendor": "csi-snapshot-moved Completed it was uploaded by the data mover", "kept": "csi-snapshot Completed it lies only in the storage",
	}
	files := ""
	for _, of := range listed.Items {
		claim, _, _ := strings.Cut(of.Spec.VolumeName, "@")
		text := fmt.Sprintf("%s %s %s", of.Status.Method, of.Status.Phase, of.Status.Message)
		if said, ok := want[claim]; !ok || !strings.HasPrefix(text, said) || strings.HasSuffix(said, "Completed ") && text != said {
			t.Errorf("%s is listed as %q, want %q", of.Spec.VolumeName, text, said)
		}
		delete(want, claim)
		if claim == "data" {
			files = of.Name
		}
	}
	if len(want) > 0 {
		t.Errorf("not listed are %v", want)
	}
	answer := lab.Request(t, http.MethodGet, filePath(labtest.System, files, "files", "/"), "")
	var page v1alpha1.VolumeFileList
	if err := json.Unmarshal(answer.Body, &page); err != nil || answer.Code != http.StatusOK || len(page.Items) == 0 {
		t.Errorf("its files: %d: %s", answer.Code, answer.Body)
	}

	restores := lab.Holdfast.HoldfastV1alpha1().Restores(labtest.System)
	request := func(to string, claims ...string) string {
		t.Helper()
		spec := v1alpha1.RestoreSpec{BackupName: "v-moved", NamespaceMapping: map[string]string{"ware": to}}
		for _, claim := range claims {
			spec.Objects = append(spec.Objects, v1alpha1.RestoreObject{Resource: "persistentvolumeclaims", Namespace: "ware", Name: claim})
		}
		restore, err := restores.Create(t.Context(), &v1alpha1.Restore{ObjectMeta: metav1.ObjectMeta{Name: labtest.Name("moved")}, Spec: spec}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return restore.Name
	}
	// Nobody vouches for the backup, and it is PartiallyFailed.
	stand := &stand{lab: lab, namespace: lab.Namespace(t, "moved"), folders: map[string]string{}, warnings: 2}
	stand.await(t, request(stand.namespace, "data", "idle"))
	for path, sum := range sums {
		content, err := os.ReadFile(filepath.Join(stand.folders["data"], path))
		if err != nil {
			t.Error(err)
		} else if got := fmt.Sprintf("%x", sha256.Sum256(content)); got != sum {
			t.Errorf("%s has the checksum %s, not %s", path, got, sum)
		}
	}
	if target, err := os.Readlink(filepath.Join(stand.folders["data"], "default")); err != nil || target != "index.html" {
		t.Errorf("the link leads to %q, %v", target, err)
	}
	if content, err := os.ReadFile(filepath.Join(stand.folders["idle"], "file")); err != nil || string(content) != "idle\n" {
		t.Errorf("the claim that no pod used has %q, %v", content, err)
	}
	claim, err := lab.Kube.CoreV1().PersistentVolumeClaims(stand.namespace).Get(t.Context(), "data", metav1.GetOptions{})
	if err != nil || claim.Annotations["velero.io/data-upload-name"] != "" || claim.Labels["velero.io/volume-snapshot-name"] != "" {
		t.Errorf("the claim is %+v, %v", claim, err)
	}

	name := request(lab.Namespace(t, "unmoved"), "kept", "vendor")
	labtest.Eventually(t, "the restore to end", func() error {
		live, err := restores.Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && !meta.IsStatusConditionTrue(live.Status.Conditions, v1alpha1.ConditionComplete) {
			err = fmt.Errorf("it is %+v", live.Status)
		}
		return err
	})
	results := lab.Kubectl(t, "get", "--raw", restorePath(labtest.System, name, "results"))
	for _, said := range []string{"its data is a snapshot in the storage of its volume, and this controller uses none", `uploaded by the data mover`} {
		if !strings.Contains(results, said) {
			t.Errorf("the results lack %q:\n%s", said, results)
		}
	}
}
