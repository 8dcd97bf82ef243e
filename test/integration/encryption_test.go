// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"filippo.io/age"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// filesWith are the files below a folder in which a value is found, compressed or not.
func filesWith(t *testing.T, folder string, values ...string) (found []string) {
	t.Helper()
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if plain, err := gzip.NewReader(bytes.NewReader(content)); err == nil {
			inside, _ := io.ReadAll(plain)
			content = append(content, inside...)
		}
		for _, value := range values {
			if bytes.Contains(content, []byte(value)) {
				found = append(found, path)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// restoredInto has a lab restore a backup into its namespace, and returns the phase and the reason.
func restoredInto(t *testing.T, lab *labtest.Lab, namespace, name, backup string) *v1alpha1.Restore {
	t.Helper()
	restores := lab.Holdfast.HoldfastV1alpha1().Restores(namespace)
	if _, err := restores.Create(t.Context(), &v1alpha1.Restore{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.RestoreSpec{BackupName: backup}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var ended *v1alpha1.Restore
	labtest.Eventually(t, "the restore "+name+" to end", func() (err error) {
		ended, err = restores.Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && ended.Status.CompletionTimestamp == nil {
			err = fmt.Errorf("it is %s: %s", ended.Status.Phase, ended.Status.Message)
		}
		return err
	})
	return ended
}

// TestEncryptedBackups: nothing of a Secret reaches the store as it is. The cluster reads and
// restores its encrypted backups, also after the location stops to encrypt; age and a recovery key
// read them without it; and another cluster does so after the key was recovered.
func TestEncryptedBackups(t *testing.T) {
	t.Parallel()
	location, folder := lab.Location(t, "encrypted")
	namespace := lab.Namespace(t, "encrypted-ns")
	const password = "correct-horse-battery-staple"
	encoded := base64.StdEncoding.EncodeToString([]byte(password))
	safe := t.TempDir()
	private, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(safe, "recovery.key"), []byte(private.String()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	patch := func(spec string) []string {
		return []string{"patch", "storagelocation", location, "-n", labtest.System, "--type=merge", "-p", `{"spec":` + spec + `}`}
	}
	lab.Refused(t, "", patch(`{"encryption":{"objects":"Enabled"}}`), "encryption needs recoveryKeys")
	lab.Refused(t, "", patch(`{"encryption":{"objects":"Sometimes"}}`), "Enabled")
	lab.Kubectl(t, patch(`{"recoveryKeys":["`+private.Recipient().String()+`"],"encryption":{"objects":"Enabled"}}`)...)
	lab.Refused(t, "", patch(`{"recoveryKeys":null}`), "encryption needs recoveryKeys")

	secrets := lab.Kube.CoreV1().Secrets(namespace)
	if _, err := secrets.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "password"}, StringData: map[string]string{"value": password}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	backUp := func(name string) *v1alpha1.Backup {
		lab.Create(t, namespace, name, v1alpha1.BackupSpec{StorageLocation: location})
		return lab.AwaitPhase(t, namespace, name, v1alpha1.BackupPhaseCompleted)
	}
	first := backUp("first")
	lab.AwaitRunGone(t, namespace+".first")
	if by := first.Status.Encryption; by == nil || len(by.RecoveryKeys) != 1 || by.RecoveryKeys[0] != private.Recipient().String() {
		t.Fatalf("it says that it is encrypted for %+v", by)
	}
	if found := filesWith(t, folder, password, encoded); len(found) > 0 {
		t.Errorf("the Secret is in %v", found)
	}
	file, err := os.Open(filepath.Join(folder, "backups", namespace+".first", namespace+".first.tar.gz.age"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	decrypted, err := age.Decrypt(file, private)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := gzip.NewReader(decrypted)
	if err != nil {
		t.Fatal(err)
	}
	if tarball, err := io.ReadAll(plain); err != nil || !bytes.Contains(tarball, []byte(encoded)) {
		t.Errorf("without Holdfast: %d bytes, %v", len(tarball), err)
	}

	read := func(by *labtest.Lab, in, name string) labtest.Response {
		return by.Request(t, http.MethodGet, "/apis/holdfast.io/v1alpha1/namespaces/"+in+"/backups/"+name+"/objects?kind=Secret&namespace="+namespace+"&name=password", "")
	}
	shown := func(by *labtest.Lab, in, name string) {
		t.Helper()
		if response := read(by, in, name); response.Code != http.StatusOK || !strings.Contains(string(response.Body), encoded) {
			t.Errorf("of %s the Secret is shown with %d: %s", name, response.Code, response.Body)
		}
	}
	shown(lab, namespace, "first")

	// Without encryption, new backups are as ever, and the old one stays as it is.
	lab.Kubectl(t, patch(`{"encryption":{"objects":"Disabled"}}`)...)
	labtest.Eventually(t, "the controller to know", func() error {
		name := labtest.Name("plain")
		if by := backUp(name).Status.Encryption; by != nil {
			return fmt.Errorf("it is encrypted for %+v", by)
		}
		shown(lab, namespace, name)
		return nil
	})
	shown(lab, namespace, "first")
	if err := secrets.Delete(t.Context(), "password", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	back := func(by *labtest.Lab, name, backup string) {
		t.Helper()
		if ended := restoredInto(t, by, namespace, name, backup); ended.Status.Phase != v1alpha1.RestorePhaseCompleted {
			t.Fatalf("the restore is %+v", ended.Status)
		}
		got, err := by.Kube.CoreV1().Secrets(namespace).Get(t.Context(), "password", metav1.GetOptions{})
		if err != nil || string(got.Data["value"]) != password {
			t.Errorf("the Secret comes back as %v, %v", got, err)
		}
	}
	back(lab, "back", "first")

	// Another cluster lists the backup, and says what it lacks.
	another := lab.Another(t)
	there := administratorOf(t, another, safe, "")
	there.run(fmt.Sprintf(`kubectl create -f - <<EOF
apiVersion: engine.holdfast.io/v1alpha1
kind: StorageLocation
metadata: {name: %s, namespace: holdfast}
spec: {provider: filesystem, filesystem: {path: %s}, allowedNamespaces: {names: ["*"]}, recoveryKeys: ["%s"], encryption: {objects: Enabled}}
EOF`, location, folder, private.Recipient()))
	another.AwaitAvailable(t, location, metav1.ConditionTrue)
	stored := namespace + ".first"
	labtest.Eventually(t, "the backup to be listed", func() error {
		_, err := another.Holdfast.HoldfastV1alpha1().Backups(labtest.System).Get(t.Context(), stored, metav1.GetOptions{})
		return err
	})
	says := func(text string) {
		t.Helper()
		for _, want := range []string{"no private key at hand", private.Recipient().String(), "holdfast repo-key recover"} {
			if !strings.Contains(text, want) {
				t.Errorf("it says %q, and not %q", text, want)
			}
		}
	}
	if response := read(another, labtest.System, stored); response.Code != http.StatusConflict {
		t.Errorf("without the key it is answered with %d: %s", response.Code, response.Body)
	} else {
		says(string(response.Body))
	}
	failed := restoredInto(t, another, labtest.System, labtest.Name("too-early"), stored)
	if failed.Status.Phase != v1alpha1.RestorePhaseFailed {
		t.Errorf("without the key a restore is %+v", failed.Status)
	}
	says(failed.Status.FailureReason)

	_, told := there.run("holdfast repo-key recover --kubeconfig=$HOME/.kube/config --backup-storage-location=" + location + " --identity=recovery.key | kubectl create -f -")
	trust := regexp.MustCompile(`(?m)^    (kubectl patch storagelocation .*)$`).FindStringSubmatch(told)
	if trust == nil {
		t.Fatalf("it says\n%s\nand not how to trust the lost cluster", told)
	}
	shown(another, labtest.System, stored)
	there.run(trust[1])
	if _, err := another.Kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	labtest.Eventually(t, "the backup to be in its namespace", func() error {
		_, err := another.Holdfast.HoldfastV1alpha1().Backups(namespace).Get(t.Context(), "first", metav1.GetOptions{})
		return err
	})
	back(another, "back", "first")
	// Its own backups are encrypted for its own key, and not for the one that it was given.
	another.Create(t, namespace, "own", v1alpha1.BackupSpec{StorageLocation: location})
	if by := another.AwaitPhase(t, namespace, "own", v1alpha1.BackupPhaseCompleted).Status.Encryption; by == nil || by.ClusterKey == first.Status.Encryption.ClusterKey {
		t.Errorf("its own is encrypted for %+v", by)
	}
	shown(another, namespace, "own")
}
