// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/cli"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// outcome is the exit code of a command, and a part of what it says: of its error if it fails, else of
// its output.
type outcome struct {
	code int
	says string
}

func works(says string) outcome { return outcome{cli.ExitOK, says} }

// denied is a refusal for lack of a right, by the verb and the resource.
func denied(verb, resource string) outcome {
	return outcome{cli.ExitFailed, `cannot ` + verb + ` resource "` + resource + `"`}
}

func refused(says string) outcome { return outcome{cli.ExitFailed, says} }

// commandRow says how a command ends for the roles edit and view, and for a user without a role.
// In its arguments, NAME is a new name, and FILE a new file.
type commandRow struct {
	args               string
	edit, view, nobody outcome
}

// commandsByRole has each command of the plugin.
var commandsByRole = map[string]commandRow{
	"backup cancel":         {"kept", refused("ended"), denied("create", "backups/cancel"), denied("create", "backups/cancel")},
	"backup create":         {"NAME --include-resources configmaps", works(""), denied("create", "backups"), denied("create", "backups")},
	"backup delete":         {"kept --yes", denied("create", "backups/deletion"), denied("create", "backups/deletion"), denied("get", "backups")},
	"backup describe":       {"kept", works("Completed"), works("Completed"), denied("get", "backups")},
	"backup diff":           {"kept kept", works(""), works(""), denied("get", "backups/manifest")},
	"backup download":       {"kept configmap/conf", works("conf"), works("conf"), denied("get", "backups/manifest")},
	"backup extend":         {"kept --for 100h", denied("create", "backups/expiration"), denied("create", "backups/expiration"), denied("create", "backups/expiration")},
	"backup get":            {"", works("kept"), works("kept"), denied("list", "backups")},
	"backup hold":           {"kept --reason r", denied("create", "backups/expiration"), denied("create", "backups/expiration"), denied("create", "backups/expiration")},
	"backup logs":           {"kept", works("Completed"), works("Completed"), denied("get", "backups/log")},
	"backup release":        {"kept", denied("create", "backups/expiration"), denied("create", "backups/expiration"), denied("create", "backups/expiration")},
	"backup results":        {"kept", works("No errors"), works("No errors"), denied("get", "backups/results")},
	"backup tree":           {"kept", works("conf"), works("conf"), denied("get", "backups/manifest")},
	"bundle":                {"--output-file FILE", works("FILE"), works("FILE"), works("FILE")},
	"completion bash":       {"", works("holdfast"), works("holdfast"), works("holdfast")},
	"completion fish":       {"", works("holdfast"), works("holdfast"), works("holdfast")},
	"completion powershell": {"", works("holdfast"), works("holdfast"), works("holdfast")},
	"completion zsh":        {"", works("holdfast"), works("holdfast"), works("holdfast")},
	"doctor":                {"", works("Nothing is wrong"), works("Nothing is wrong"), refused("")},
	"files cat":             {"VOLUMEBACKUP:/file", works("content"), denied("get", "volumebackups/files"), denied("get", "volumebackups/files")},
	"files cp":              {"VOLUMEBACKUP:/file FILE", works(""), denied("get", "volumebackups/files"), denied("get", "volumebackups/files")},
	"files ls":              {"VOLUMEBACKUP", works("file"), denied("get", "volumebackups/files"), denied("get", "volumebackups/files")},
	"find":                  {"configmap/conf", works("conf"), works("conf"), denied("list", "backupobjects")},
	"history":               {"configmap/conf", works("conf"), works("conf"), denied("list", "backupobjects")},
	"keys export":           {"--output-file FILE", denied("list", "secrets"), denied("list", "secrets"), denied("list", "secrets")},
	"keys rotate":           {"shop.default", outcome{cli.ExitUsage, "holdfast repo-key"}, outcome{cli.ExitUsage, "holdfast repo-key"}, outcome{cli.ExitUsage, "holdfast repo-key"}},
	"keys status":           {"", denied("list", "volumerepositories"), denied("list", "volumerepositories"), denied("list", "volumerepositories")},
	"location check":        {"default", denied("get", "storagelocations"), denied("get", "storagelocations"), denied("get", "storagelocations")},
	"location create":       {"NAME --path /backups", denied("create", "storagelocations"), denied("create", "storagelocations"), denied("create", "storagelocations")},
	"location get":          {"", denied("list", "storagelocations"), denied("list", "storagelocations"), denied("list", "storagelocations")},
	"migrate velero":        {"--yes", denied("list", "backupstoragelocations"), denied("list", "backupstoragelocations"), denied("list", "backupstoragelocations")},
	"protection":            {"", works("data"), works("data"), denied("list", "protections")},
	"queue":                 {"", works(""), works(""), denied("list", "backupqueues")},
	"restore cancel":        {"back", refused("ended"), denied("create", "restores/cancel"), denied("create", "restores/cancel")},
	"restore create":        {"NAME --from kept configmap/conf --yes", works(""), denied("create", "restores"), denied("create", "restores")},
	"restore describe":      {"back", works("Completed"), works("Completed"), denied("get", "restores")},
	"restore get":           {"", works("back"), works("back"), denied("list", "restores")},
	"restore logs":          {"back", works("equal"), works("equal"), denied("get", "restores/log")},
	"restore plan":          {"back", works("2 objects: skip 2"), denied("get", "restores/plan"), denied("get", "restores/plan")},
	"restore results":       {"back", works("No errors"), works("No errors"), denied("get", "restores/results")},
	"schedule create":       {"NAME --schedule @daily --paused", works("created"), denied("create", "schedules"), denied("create", "schedules")},
	"schedule get":          {"", works("nightly"), works("nightly"), denied("list", "schedules")},
	"schedule pause":        {"awake-ROLE", works("paused"), denied("update", "schedules"), denied("get", "schedules")},
	"schedule resume":       {"asleep-ROLE", works("resumed"), denied("update", "schedules"), denied("get", "schedules")},
	"schedule run":          {"nightly", works(""), denied("create", "schedules/trigger"), denied("create", "schedules/trigger")},
	"status":                {"", works("kept"), works("kept"), denied("list", "backupqueues")},
	"top":                   {"", denied("list", "nodeagents"), denied("list", "nodeagents"), denied("list", "nodeagents")},
	"version":               {"", works("Agents: not known: you may not list nodeagents"), works("Agents: not known"), works("Agents: not known")},
	"volumes":               {"", works("data"), works("data"), denied("list", "backupvolumes")},
	"volumes delete":        {"VOLUME --yes", denied("create", "backupvolumes/deletion"), denied("create", "backupvolumes/deletion"), denied("get", "backupvolumes")},
	"volumes delete-backup": {"VOLUMEBACKUP --yes", denied("create", "volumebackups/deletion"), denied("create", "volumebackups/deletion"), denied("get", "volumebackups")},
}

// TestEachCommandByRole: for each role, a command works or names the missing right in one line and the
// next step in another, with the exit code of docs/cli.md. Its JSON parses.
func TestEachCommandByRole(t *testing.T) {
	t.Parallel()
	commands := map[string]*cobra.Command{}
	var walk func(command *cobra.Command, path string)
	walk = func(command *cobra.Command, path string) {
		if row := commandsByRole[path]; !command.HasSubCommands() || row.args != "" || row.edit != (outcome{}) {
			commands[path] = command
		}
		for _, sub := range command.Commands() {
			walk(sub, strings.TrimSpace(path+" "+sub.Name()))
		}
	}
	root := cli.New("test", genericiooptions.IOStreams{Out: io.Discard, ErrOut: io.Discard})
	root.InitDefaultCompletionCmd()
	walk(root, "")
	for path := range commandsByRole {
		if commands[path] == nil {
			t.Errorf("there is no command %s: remove its row", path)
		}
	}

	namespace := lab.Namespace(t, "by-role")
	users := map[string]string{"edit": labtest.Name("ed"), "view": labtest.Name("vic"), "nobody": labtest.Name("sam")}
	lab.Grant(t, users["edit"], "edit", namespace)
	lab.Grant(t, users["view"], "view", namespace)
	_, folder := lab.PodWithClaim(t, namespace, labtest.Node)
	if err := os.WriteFile(filepath.Join(folder, "file"), []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	lab.Kubectl(t, "create", "configmap", "conf", "-n", namespace, "--from-literal=a=1")
	in := func(args ...string) []string { return append(args, "-n", namespace) }
	must(t, users["edit"], in("backup", "create", "kept", "--default-volumes-to-fs-backup", "--wait"))
	must(t, users["edit"], in("restore", "create", "back", "--from", "kept", "configmap/conf", "--yes", "--wait"))
	schedules := lab.Holdfast.HoldfastV1alpha1().Schedules(namespace)
	for name, paused := range map[string]bool{"nightly": true, "awake-edit": false, "awake-view": false, "awake-nobody": false, "asleep-edit": true, "asleep-view": true, "asleep-nobody": true} {
		if _, err := schedules.Create(t.Context(), &v1alpha1.Schedule{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.ScheduleSpec{Schedule: "@yearly", Paused: paused}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	of := volumeHistory(t, namespace, "kept")
	for _, path := range slices.Sorted(maps.Keys(commands)) {
		row, known := commandsByRole[path]
		if !known {
			t.Errorf("the command %s has no row: say what becomes of it for each role", path)
			continue
		}
		for role, want := range map[string]outcome{"edit": row.edit, "view": row.view, "nobody": row.nobody} {
			t.Run(strings.ReplaceAll(path, " ", "-")+"/"+role, func(t *testing.T) {
				t.Parallel()
				run := func(more ...string) (stdout, stderr string) {
					t.Helper()
					file := filepath.Join(t.TempDir(), "file")
					texts := strings.NewReplacer("NAME", labtest.Name("by-role"), "FILE", file, "ROLE", role, "VOLUMEBACKUP", of.Name, "VOLUME", of.Spec.VolumeName)
					args := slices.Concat(strings.Fields(path), strings.Fields(texts.Replace(row.args)), more, []string{"-n", namespace})
					stdout, stderr, code := plugin(t, users[role], args...)
					says := stdout
					if code != cli.ExitOK && stderr != "" {
						says = stderr
					}
					if len(more) > 0 {
						says = texts.Replace(want.says) // the format is another one
					}
					if code != want.code || !strings.Contains(says, texts.Replace(want.says)) {
						t.Errorf("exit code %d, want %d with %q: %s%s", code, want.code, want.says, stdout, stderr)
					}
					// The API warns each client about stores that are away, as in other tests.
					said := slices.DeleteFunc(slices.Collect(strings.Lines(stderr)), func(line string) bool { return strings.HasPrefix(line, "Warning: ") })
					if code == cli.ExitFailed && (len(said) > 2 || len(said) > 0 && !strings.HasPrefix(said[0], "error: ")) {
						t.Errorf("the error has %d lines, want one or two: %s", len(said), stderr)
					}
					for _, bad := range []string{"panic", "goroutine ", "runtime error", "&{", "<nil>", "%!", "0xc0"} {
						if strings.Contains(stdout+stderr, bad) {
							t.Errorf("%q is in %s%s", bad, stdout, stderr)
						}
					}
					return stdout, stderr
				}
				run()
				if output := commands[path].Flags().Lookup("output"); output != nil && strings.Contains(output.Usage, "json") && want.code == cli.ExitOK {
					stdout, _ := run("-o", "json")
					documents := 0
					for decoder := json.NewDecoder(strings.NewReader(stdout)); ; documents++ {
						var document any
						if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
							break
						} else if err != nil {
							t.Fatalf("-o json: %v: %s", err, stdout)
						}
					}
					if documents == 0 {
						t.Error("-o json prints nothing")
					}
				}
			})
		}
	}
}
