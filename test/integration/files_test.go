// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/cli"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// filePath is the address of a file of a volume backup.
func filePath(namespace, volumeBackup, subresource, path string, parameters ...string) string {
	query := url.Values{"path": {path}}
	for i := 0; i < len(parameters); i += 2 {
		query.Set(parameters[i], parameters[i+1])
	}
	return api + "/namespaces/" + namespace + "/volumebackups/" + volumeBackup + "/" + subresource + "?" + query.Encode()
}

func randomFile(t *testing.T, name string, size int) []byte {
	t.Helper()
	content := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{7}).Read(content)
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return content
}

// TestFilesOfAVolumeBackup: a developer looks into a backup of a volume and takes files out of it, a
// viewer and another tenant get nothing, and the audit log says what was read.
func TestFilesOfAVolumeBackup(t *testing.T) {
	t.Parallel()
	ann, vic, sam := labtest.Name("ann"), labtest.Name("vic"), labtest.Name("sam")
	namespace, elsewhere := lab.Namespace(t, "look-inside"), lab.Namespace(t, "elsewhere")
	_, folder := lab.PodWithClaim(t, namespace, labtest.Node)
	fill(t, folder)
	large := randomFile(t, filepath.Join(folder, "large"), 20<<20+17)
	for name, target := range map[string]string{"inside": "deep/er", "outside": "/etc/passwd", "up": "../../etc/passwd"} {
		if err := os.Symlink(target, filepath.Join(folder, name)); err != nil {
			t.Fatal(err)
		}
	}
	lab.Grant(t, ann, "edit", namespace)
	lab.Grant(t, vic, "view", namespace)
	lab.Grant(t, sam, "edit", elsewhere)
	lab.Create(t, namespace, "nightly", v1alpha1.BackupSpec{DefaultVolumesToFsBackup: new(true)})
	lab.AwaitPhase(t, namespace, "nightly", v1alpha1.BackupPhaseCompleted)
	of := volumeHistory(t, namespace, "nightly").Name

	// By the API, in pages.
	seen := map[string]v1alpha1.VolumeFile{}
	for next := ""; ; {
		parameters := []string{"limit", "2"}
		if next != "" {
			parameters = append(parameters, "continue", next)
		}
		answer := lab.RequestAs(t, ann, http.MethodGet, filePath(namespace, of, "files", "/", parameters...), "")
		var page v1alpha1.VolumeFileList
		if err := json.Unmarshal(answer.Body, &page); err != nil || answer.Code != http.StatusOK || page.Kind != "VolumeFileList" || len(page.Items) > 2 || page.File.Name != "/" {
			t.Fatalf("a page: %d: %s", answer.Code, answer.Body)
		}
		for _, item := range page.Items {
			if _, twice := seen[item.Name]; twice {
				t.Errorf("%q is listed twice", item.Name)
			}
			seen[item.Name] = item
		}
		if next = page.Continue; next == "" {
			break
		}
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	left := len(seen)
	for _, entry := range entries {
		if _, ok := seen[entry.Name()]; ok {
			left--
		} else if entry.Type().IsRegular() || entry.IsDir() {
			t.Errorf("%q is not listed", entry.Name())
		}
	}
	if left != 0 {
		t.Errorf("%d of the listed files are not in the volume: %v", left, seen)
	}
	if got := seen["large"]; got.Type != v1alpha1.VolumeFileTypeFile || got.SizeBytes != int64(len(large)) || got.Mode != "0600" {
		t.Errorf("the large file is listed as %+v", got)
	}
	answer := lab.RequestAs(t, ann, http.MethodGet, filePath(namespace, of, "content", "/large"), "")
	if answer.Code != http.StatusOK || !bytes.Equal(answer.Body, large) || answer.Header.Get("Content-Length") != fmt.Sprint(len(large)) ||
		answer.Header.Get("Content-Type") != "application/octet-stream" || answer.Header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("the large file: %d, %d of %d bytes, %v", answer.Code, len(answer.Body), len(large), answer.Header)
	}
	answer = lab.RequestAs(t, ann, http.MethodGet, filePath(namespace, of, "content", "/large", "offset", "9000000", "length", "5"), "")
	if answer.Code != http.StatusOK || !bytes.Equal(answer.Body, large[9000000:9000005]) {
		t.Errorf("a part of it: %d, %d bytes", answer.Code, len(answer.Body))
	}
	answer = lab.RequestAs(t, ann, http.MethodGet, filePath(namespace, of, "content", "/outside", "link", "true"), "")
	if answer.Code != http.StatusOK || string(answer.Body) != "/etc/passwd" {
		t.Errorf("the target of a link: %d, %s", answer.Code, answer.Body)
	}

	// What can't be read says why.
	for path, want := range map[string]struct {
		code int
		text string
	}{
		filePath(namespace, of, "files", "/absent"):                        {http.StatusNotFound, "no such file or folder"},
		filePath(namespace, of, "content", "/absent/deeper"):               {http.StatusNotFound, `\"/absent\"`},
		filePath(namespace, of, "content", "/"):                            {http.StatusBadRequest, "is a folder"},
		filePath(namespace, of, "content", "/outside"):                     {http.StatusBadRequest, "symbolic link"},
		filePath(namespace, of, "content", "/inside/est"):                  {http.StatusBadRequest, "not followed"},
		filePath(namespace, of, "content", "/../../etc/passwd"):            {http.StatusBadRequest, "must not have the element"},
		filePath(namespace, of, "content", "/\xff"):                        {http.StatusBadRequest, "UTF-8"},
		filePath(namespace, of, "content", "/large", "offset", "99999999"): {http.StatusBadRequest, "no part of it"},
		filePath(namespace, of, "files", "/", "limit", "1000000"):          {http.StatusBadRequest, "at most"},
		filePath(namespace, of, "files", "/", "continue", "x.1"):           {http.StatusBadRequest, "continue token"},
		filePath(namespace, "nightly:nothing", "files", "/"):               {http.StatusNotFound, "not found"},
	} {
		if answer := lab.RequestAs(t, ann, http.MethodGet, path, ""); answer.Code != want.code || !strings.Contains(string(answer.Body), want.text) {
			t.Errorf("%s: %d: %s", path, answer.Code, answer.Body)
		}
	}
	for _, user := range []string{vic, sam} {
		for _, subresource := range []string{"files", "content"} {
			if answer := lab.RequestAs(t, user, http.MethodGet, filePath(namespace, of, subresource, "/large"), ""); answer.Code != http.StatusForbidden {
				t.Errorf("%s of %s: %d: %.200s", subresource, user, answer.Code, answer.Body)
			}
		}
	}
	if answer := lab.RequestAs(t, sam, http.MethodGet, filePath(elsewhere, of, "content", "/large"), ""); answer.Code != http.StatusNotFound {
		t.Errorf("by the name in another namespace: %d: %.200s", answer.Code, answer.Body)
	}

	// By the command.
	in := func(args ...string) []string { return append(args, "-n", namespace) }
	must(t, ann, in("files", "ls", of), "large", "deep/", "inside")
	must(t, ann, in("files", "ls", of+":/deep", "-o", "name"), "/deep/er\n")
	if got := must(t, ann, in("files", "cat", of+":/large")); got != string(large) {
		t.Errorf("cat printed %d bytes of %d", len(got), len(large))
	}
	to := filepath.Join(t.TempDir(), "copy")
	_, stderr, code := plugin(t, ann, in("files", "cp", of+":/", to)...)
	if code != cli.ExitPartial || !strings.Contains(stderr, "/outside is left out") || !strings.Contains(stderr, "/up is left out") || !strings.Contains(stderr, "4 links or special files were left out") {
		t.Errorf("cp ended with %d: %s", code, stderr)
	}
	sameFiles(t, folder, to, "outside", "up", "upwards", "dangling")
	file := filepath.Join(t.TempDir(), "one")
	must(t, ann, in("files", "cp", of+":/large", file))
	if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, large) {
		t.Errorf("a copied file has %d bytes, %v", len(got), err)
	}
	if _, stderr, code := plugin(t, ann, in("files", "cp", of+":/large", file)...); code != cli.ExitFailed || !strings.Contains(stderr, "exists") {
		t.Errorf("once more cp ended with %d: %s", code, stderr)
	}
	if _, stderr, code := plugin(t, vic, in("files", "cat", of+":/large")...); code != cli.ExitFailed || !strings.Contains(stderr, "forbidden") {
		t.Errorf("cat of a viewer ended with %d: %s", code, stderr)
	}

	labtest.Eventually(t, "the audit log", func() error {
		events, text := lab.Audited(t)
		if bytes.Contains([]byte(text), large[:64]) {
			t.Fatal("the audit log has the content of a file")
		}
		for _, event := range events {
			user := event.User.Username
			if event.ImpersonatedUser != nil {
				user = event.ImpersonatedUser.Username
			}
			if user == ann && event.ObjectRef != nil && event.ObjectRef.Subresource == "content" && event.ObjectRef.Name == of && event.Annotations["files.holdfast.io/read"] == "/large" {
				return nil
			}
		}
		return errors.New("nothing says that a file was read")
	})
}

// sameFiles compares contents, permissions, times and links.
func sameFiles(t *testing.T, want, got string, except ...string) {
	t.Helper()
	describe := func(root string) map[string]string {
		found := map[string]string{}
		if err := filepath.WalkDir(root, func(name string, entry os.DirEntry, err error) error {
			if err != nil {
				return err
			}
			at, err := filepath.Rel(root, name)
			if err != nil {
				return err
			}
			for _, left := range except {
				if at == left {
					return nil
				}
			}
			info, err := entry.Info()
			switch {
			case err != nil:
				return err
			case info.Mode().IsRegular():
				content, err := os.ReadFile(name)
				if err != nil {
					return err
				}
				found[at] = fmt.Sprintf("%s %s %x", info.Mode().Perm(), info.ModTime(), content[:min(64, len(content))])
			case info.IsDir():
				found[at] = fmt.Sprintf("%s %s folder", info.Mode().Perm(), info.ModTime())
			case info.Mode().Type() == os.ModeSymlink:
				target, err := os.Readlink(name)
				if err != nil {
					return err
				}
				found[at] = "-> " + target
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return found
	}
	is, should := describe(got), describe(want)
	for name, as := range should {
		if is[name] != as {
			t.Errorf("%q is %.200q, not %.200q", name, is[name], as)
		}
	}
	for name := range is {
		if should[name] == "" {
			t.Errorf("%q is in the copy alone", name)
		}
	}
}

// TestFileWhoseStoreGoesAway: if the store goes away while a file is read, the command fails and says
// that the file is not complete, and a copy leaves nothing that looks like it.
func TestFileWhoseStoreGoesAway(t *testing.T) {
	t.Parallel()
	namespace, ann := lab.Namespace(t, "cut-off"), labtest.Name("ann")
	lab.Grant(t, ann, "edit", namespace)
	var away atomic.Bool
	spec, secret := storetest.FakeS3(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if away.Load() {
				panic(http.ErrAbortHandler)
			}
			next.ServeHTTP(w, r)
		})
	})
	location, locations := labtest.Name("cut-off"), lab.Engine.EngineV1alpha1().StorageLocations(labtest.System)
	spec.S3.CredentialsSecret, spec.AllowedNamespaces = location, &enginev1alpha1.AllowedNamespaces{Names: []string{"*"}}
	if _, err := lab.Kube.CoreV1().Secrets(enginev1alpha1.CredentialsNamespace(labtest.System)).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: location}, Data: secret}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := locations.Create(t.Context(), &enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Name: location}, Spec: spec}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := locations.Delete(context.Background(), location, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	lab.AwaitAvailable(t, location, metav1.ConditionTrue)
	_, folder := lab.PodWithClaim(t, namespace, labtest.Node)
	const size = 160 << 20
	randomFile(t, filepath.Join(folder, "large"), size)
	lab.Create(t, namespace, "nightly", v1alpha1.BackupSpec{StorageLocation: location, DefaultVolumesToFsBackup: new(true)})
	lab.AwaitPhase(t, namespace, "nightly", v1alpha1.BackupPhaseCompleted)
	of := volumeHistory(t, namespace, "nightly").Name

	command := lab.Command(t.Context(), "holdfast", "files", "cat", of+":/large", "-n", namespace, "--as="+ann)
	command.Env = append(command.Environ(), "PATH="+lab.Bin()+":"+os.Getenv("PATH"))
	var problems strings.Builder
	command.Stderr = &problems
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(io.Discard, out, 1<<20); err != nil {
		t.Fatal(err)
	}
	away.Store(true)
	began := time.Now()
	rest, err := io.Copy(io.Discard, out)
	if err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := command.Wait(); !errors.As(err, &exit) || exit.ExitCode() != cli.ExitFailed {
		t.Errorf("cat ended with %v", err)
	}
	t.Logf("after %s and %d bytes: %s", time.Since(began).Round(time.Second), 1<<20+rest, problems.String())
	if 1<<20+rest >= size {
		t.Fatalf("all of the file came before the store went away: %d bytes", 1<<20+rest)
	}
	if !strings.Contains(problems.String(), "is not complete") {
		t.Errorf("cat says %s", problems.String())
	}
	mustNotContain(t, "what cat says", problems.String(), []string{spec.S3.Endpoint})

	to := t.TempDir()
	_, stderr, code := plugin(t, ann, "files", "cp", of+":/large", to, "-n", namespace)
	if code != cli.ExitFailed {
		t.Errorf("cp ended with %d: %s", code, stderr)
	}
	mustNotContain(t, "what cp says", stderr, []string{spec.S3.Endpoint})
	if left, err := os.ReadDir(to); err != nil || len(left) > 0 {
		t.Errorf("cp has left %v, %v", left, err)
	}
}
