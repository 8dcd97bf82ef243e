// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"filippo.io/age"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/repository"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// documented are the commands below a heading of docs/install.md, block by block.
func documented(t *testing.T, heading string) (blocks []string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/install.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n"+heading+"\n")
	if !found {
		t.Fatalf("docs/install.md has no heading %q", heading)
	}
	section, _, _ = strings.Cut(section, "\n##")
	inBlock := false
	for line := range strings.Lines(section) {
		command, indented := strings.CutPrefix(line, "    ")
		switch {
		case indented && inBlock:
			blocks[len(blocks)-1] += command
		case indented:
			blocks = append(blocks, command)
		}
		inBlock = indented
	}
	return blocks
}

// administrator is somebody at a shell who reaches one cluster, in a folder of their own.
type administrator struct {
	*testing.T
	folder, home, path string
}

// administratorOf gives an administrator of a lab, who works in a folder with certain programs.
func administratorOf(t *testing.T, lab *labtest.Lab, folder, programs string) *administrator {
	t.Helper()
	home := t.TempDir()
	if err := os.Mkdir(filepath.Join(home, ".kube"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(lab.Kubeconfig(), filepath.Join(home, ".kube", "config")); err != nil {
		t.Fatal(err)
	}
	return &administrator{t, folder, home, strings.Join([]string{lab.Bin(), programs, os.Getenv("PATH")}, ":")}
}

// try runs commands, of which each must succeed.
func (a *administrator) try(commands string) (output, told string, err error) {
	a.Helper()
	command := exec.CommandContext(a.Context(), "bash", "-euo", "pipefail", "-c", commands)
	command.Dir = a.folder
	command.Env = []string{"HOME=" + a.home, "PATH=" + a.path}
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	err = command.Run()
	return stdout.String(), stderr.String(), err
}

func (a *administrator) run(commands string) (output, told string) {
	a.Helper()
	output, told, err := a.try(commands)
	if err != nil {
		a.Fatalf("%s\n%v\n%s%s", commands, err, output, told)
	}
	return output, told
}

// awaitKey waits for the condition KeyBackedUp of a repository.
func awaitKey(t *testing.T, lab *labtest.Lab, name, reason string) {
	t.Helper()
	labtest.Eventually(t, "the key of "+name+" to be "+reason, func() error {
		record, err := lab.Engine.EngineV1alpha1().VolumeRepositories(labtest.System).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		condition := meta.FindStatusCondition(record.Status.Conditions, enginev1alpha1.ConditionKeyBackedUp)
		if condition == nil || condition.Reason != reason {
			return fmt.Errorf("it says %+v", condition)
		}
		return nil
	})
}

// TestALostClusterIsRecovered: the store and a private key are enough to get all data back in
// another cluster, by the commands of docs/install.md as they stand there, but for the names of
// the location and the namespace.
func TestALostClusterIsRecovered(t *testing.T) {
	t.Parallel()
	location, store := lab.Location(t, "recovered")
	namespace := lab.Namespace(t, "recovered")
	programs, safe := t.TempDir(), t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", programs, "filippo.io/age/cmd/age-keygen")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	named := strings.NewReplacer("storagelocation default ", "storagelocation "+location+" ", "location=default", "location="+location, "shop", namespace)
	here := administratorOf(t, lab, safe, programs)
	for _, block := range documented(t, "### A recovery key") {
		here.run(named.Replace(block))
	}
	if info, err := os.Stat(filepath.Join(safe, "recovery.key")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the private key is %v, %v", info, err)
	}

	before := &stand{lab: lab, namespace: namespace, folders: map[string]string{}}
	before.run(t)
	want := before.fill(t)
	lab.Create(t, namespace, "last", v1alpha1.BackupSpec{StorageLocation: location})
	lab.AwaitPhase(t, namespace, "last", v1alpha1.BackupPhaseCompleted)
	lab.AwaitRunGone(t, namespace+".last")
	name := enginev1alpha1.RepositoryName(namespace, location)
	awaitKey(t, lab, name, enginev1alpha1.ReasonKeyWrapped)
	if said, _ := here.run("holdfast repo-key rotate --kubeconfig=$HOME/.kube/config --repo-name=" + namespace + " --backup-storage-location=" + location); !strings.Contains(said, "encrypted for age1") {
		t.Errorf("the rotation says %s", said)
	}
	if row, _ := here.run("kubectl get volumerepository -n holdfast " + name); !strings.Contains(row, "Wrapped") {
		t.Errorf("it is shown as\n%s", row)
	}

	// Another cluster, which has nothing of the first but the store and the private key.
	another := lab.Another(t)
	there := administratorOf(t, another, safe, programs)
	there.run(fmt.Sprintf(`kubectl create -f - <<EOF
apiVersion: engine.holdfast.io/v1alpha1
kind: StorageLocation
metadata: {name: %s, namespace: holdfast}
spec: {provider: filesystem, filesystem: {path: %s}, recoveryKeys: ["%s"]}
EOF`, location, store, recipientIn(t, filepath.Join(safe, "recovery.key"))))
	another.AwaitAvailable(t, location, metav1.ConditionTrue)
	blocks := documented(t, "### When the cluster is lost")
	if len(blocks) != 2 {
		t.Fatalf("docs/install.md has %d blocks of commands: %q", len(blocks), blocks)
	}
	_, told := there.run(named.Replace(blocks[0]))
	published := lab.Kubectl(t, "get", "configmap", "holdfast-identity", "-n", labtest.System, "-o", "jsonpath={.data.public-keys}")
	if !strings.Contains(told, strings.Fields(published)[0]) {
		t.Errorf("it says\n%s\nand not who has signed", told)
	}
	trust := regexp.MustCompile(`(?m)^    (kubectl patch storagelocation .*)$`).FindStringSubmatch(told)
	if trust == nil {
		t.Fatalf("it says\n%s\nand not how to trust the lost cluster", told)
	}
	there.run(trust[1])
	labtest.Eventually(t, "the backups of the lost cluster to be in their namespace", func() error {
		_, err := another.Holdfast.HoldfastV1alpha1().Backups(namespace).Get(t.Context(), "last", metav1.GetOptions{})
		return err
	})
	there.run(named.Replace(blocks[1]))
	after := &stand{lab: another, namespace: namespace, generation: "-again", folders: map[string]string{}}
	after.await(t, "back")
	if got := slices.Sorted(maps.Keys(after.folders)); len(want) != 2 || len(got) != 2 {
		t.Fatalf("there were the volumes %v, and are %v", slices.Sorted(maps.Keys(want)), got)
	}
	for claim := range want {
		if diff := cmp.Diff(want[claim], tree(t, after.folders[claim])); diff != "" {
			t.Errorf("the files of %s (-before +after):\n%s", claim, diff)
		}
	}
	awaitKey(t, another, name, enginev1alpha1.ReasonKeyWrapped)
	// Whoever calls it again is told that nothing is left to do, and replaces nothing.
	if output, told, err := there.try(named.Replace(blocks[0])); err == nil || !strings.Contains(told, "already exists") || strings.Contains(told, "kubectl patch") {
		t.Errorf("again: %v, %s%s", err, output, told)
	}
}

// recipientIn is the public key that age-keygen has noted beside a private one.
func recipientIn(t *testing.T, file string) string {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	public := regexp.MustCompile(`age1[0-9a-z]+`).Find(content)
	if public == nil {
		t.Fatal("there is no public key in it")
	}
	return string(public)
}

// TestKeysAreExported: the documented commands print keys that open the repositories, and note
// that down, until the key is another one.
func TestKeysAreExported(t *testing.T) {
	t.Parallel()
	namespace, backup := lab.Namespace(t, "exported"), labtest.Name("exported")
	_, folder := lab.PodWithClaim(t, namespace, labtest.Node)
	fill(t, folder)
	lab.Create(t, labtest.System, backup, v1alpha1.BackupSpec{IncludedNamespaces: []string{namespace}, DefaultVolumesToFsBackup: new(true)})
	lab.AwaitCompleted(t, backup)
	lab.AwaitRunGone(t, backup)
	name := enginev1alpha1.RepositoryName(namespace, "default")
	awaitKey(t, lab, name, enginev1alpha1.ReasonKeyNotExported)
	here := administratorOf(t, lab, t.TempDir(), "")
	blocks := documented(t, "### An export")
	if len(blocks) != 2 {
		t.Fatalf("docs/install.md has %d blocks of commands: %q", len(blocks), blocks)
	}
	rotate := func() {
		t.Helper()
		here.run("holdfast repo-key rotate --kubeconfig=$HOME/.kube/config --repo-name=" + namespace + " --backup-storage-location=default")
		awaitKey(t, lab, name, enginev1alpha1.ReasonKeyNotExported)
	}
	here.run(blocks[0])
	awaitKey(t, lab, name, enginev1alpha1.ReasonKeyExported)
	// The file is what another cluster takes, and its key opens the repository.
	here.run("kubectl create --dry-run=client -f keys.yaml")
	location, err := lab.Engine.EngineV1alpha1().StorageLocations(labtest.System).Get(t.Context(), "default", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	key, _ := here.run("kubectl create --dry-run=client -f keys.yaml -o go-template='{{if eq .metadata.name \"" + name + ".key\"}}{{index .data \"repository-password\" | base64decode}}{{end}}'")
	if err := repository.Opens(t.Context(), repository.Location{Spec: location.Spec}, namespace, repository.Key(key)); err != nil {
		t.Errorf("the key that was exported: %v", err)
	}
	rotate()
	if err := repository.Opens(t.Context(), repository.Location{Spec: location.Spec}, namespace, repository.Key(key)); !errors.Is(err, repository.ErrWrongKey) {
		t.Errorf("the key that was exported before: %v", err)
	}
	here.run(fmt.Sprintf("holdfast repo-key export --kubeconfig=$HOME/.kube/config --repo-name=%s --backup-storage-location=default", namespace))
	awaitKey(t, lab, name, enginev1alpha1.ReasonKeyExported)
	rotate()
	// Who copies it otherwise notes that down. The note says which key, so it may be an old one.
	note := strings.ReplaceAll(blocks[1], "shop", namespace)
	labtest.Eventually(t, "the fingerprint to be that of the present key", func() error {
		here.run(note)
		record, err := lab.Engine.EngineV1alpha1().VolumeRepositories(labtest.System).Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && !meta.IsStatusConditionTrue(record.Status.Conditions, enginev1alpha1.ConditionKeyBackedUp) {
			err = errors.New("it is not noted")
		}
		return err
	})
	if _, _, err := here.try("holdfast repo-key export --all --repo-name=shop --kubeconfig=$HOME/.kube/config"); err == nil {
		t.Error("all and one are exported")
	}
}

// TestRecoveryKeysAreValidated: the API server refuses what is no public key, and never quotes it;
// a mistyped one makes the location unavailable.
func TestRecoveryKeysAreValidated(t *testing.T) {
	t.Parallel()
	location, _ := lab.Location(t, "mistyped")
	private, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	public := private.Recipient().String()
	patch := func(keys string) []string {
		return []string{"patch", "storagelocation", location, "-n", labtest.System, "--type=merge", "-p", `{"spec":{"recoveryKeys":[` + keys + `]}}`}
	}
	for _, c := range []struct{ key, says string }{
		{private.String(), "this is a private key, which must not be in the cluster"},
		{strings.ToLower(private.String()), "this is a private key, which must not be in the cluster"},
		{"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAA", "each must be a public key of age"},
		{public + " ", "each must be a public key of age"},
		{"age1yubikey1qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqq", "each must be a public key of age"},
	} {
		said := lab.Refused(t, "", patch(`"`+public+`","`+c.key+`"`), c.says, "spec.recoveryKeys")
		if strings.Contains(said, c.key) {
			t.Errorf("the refusal quotes it: %s", said)
		}
	}
	lab.Kubectl(t, patch(`"`+public+`"`)...)
	broken := []byte(public)
	broken[20] = map[bool]byte{true: 'q', false: 'p'}[broken[20] == 'p']
	lab.Kubectl(t, patch(`"`+string(broken)+`"`)...)
	if condition := lab.AwaitAvailable(t, location, metav1.ConditionFalse); condition.Reason != enginev1alpha1.ReasonInvalid || !strings.Contains(condition.Message, "spec.recoveryKeys[0] is not a public key of age") {
		t.Errorf("it says %+v", condition)
	}
	lab.Kubectl(t, patch(`"`+public+`"`)...)
	lab.AwaitAvailable(t, location, metav1.ConditionTrue)
}
