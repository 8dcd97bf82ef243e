// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// workflow is what these tests read of a workflow of the public CI.
type workflow struct {
	On struct {
		Push        struct{ Branches, Tags []string }
		PullRequest any `json:"pull_request"`
	}
	Permissions map[string]string
	Jobs        map[string]struct {
		RunsOn      string `json:"runs-on"`
		Permissions map[string]string
		Strategy    struct{ Matrix map[string][]string }
		Steps       []struct {
			Name, ID, Uses, Run string
			Env                 map[string]string
		}
	}
}

var (
	pinned = regexp.MustCompile(`^[a-z-]+/[a-z-]+@[0-9a-f]{40}$`)
	// A target of make, and a script of this tree, where a command calls it.
	makeTarget, scriptCall = regexp.MustCompile(`(?m)\bmake ([a-z][a-z-]*)`), regexp.MustCompile(`(?m)^(\.?[a-z]+/[a-z./-]+)`)
)

// TestWorkflows reads the workflows of the public CI. They can't run here: their actions are
// pinned, their rights are the least, and the targets and scripts that they call exist.
func TestWorkflows(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	paths, err := filepath.Glob("../../.github/workflows/*")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]workflow{}
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Base(path)
		var w workflow
		if err := yaml.Unmarshal(content, &w); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		all[name] = w
		if len(w.Permissions) != 1 || w.Permissions["contents"] != "read" {
			t.Errorf("%s has the permissions %v for all jobs, want to read contents only", name, w.Permissions)
		}
		for job, j := range w.Jobs {
			if j.RunsOn == "" || len(j.Steps) == 0 {
				t.Errorf("%s: the job %s has no runner, or no steps", name, job)
			}
			ids := []string{}
			for _, step := range j.Steps {
				if (step.Uses == "") == (step.Run == "") {
					t.Errorf("%s: a step of %s has either uses or run: %+v", name, job, step)
				}
				if step.Uses != "" && !pinned.MatchString(step.Uses) {
					t.Errorf("%s uses %s, want a commit of 40 digits behind @", name, step.Uses)
				}
				for _, target := range makeTarget.FindAllStringSubmatch(step.Run, -1) {
					if !strings.Contains(string(makefile), "\n"+target[1]+": ") {
						t.Errorf("%s runs make %s, which is no target", name, target[1])
					}
				}
				for _, script := range scriptCall.FindAllStringSubmatch(step.Run, -1) {
					// Files that make builds are not in the tree.
					if _, err := os.Stat(filepath.Join("../..", script[1])); err != nil && !strings.HasPrefix(script[1], ".lab/") {
						t.Errorf("%s runs %s: %v", name, script[1], err)
					}
				}
				// An expression in a script would be another author's code.
				if strings.Contains(step.Run, "${{") {
					t.Errorf("%s: a step of %s has an expression in its script; give it as env", name, job)
				}
				if step.ID != "" {
					ids = append(ids, step.ID)
				}
			}
			for _, use := range regexp.MustCompile(`steps\.([a-z]+)\.outputs`).FindAllStringSubmatch(string(content), -1) {
				if !slices.Contains(ids, use[1]) {
					t.Errorf("%s uses outputs of the step %s, which does not exist", name, use[1])
				}
			}
		}
	}
	if len(all) != 2 {
		t.Errorf("there are %d workflows, want ci.yaml and release.yaml", len(all))
	}
	ci, release := all["ci.yaml"], all["release.yaml"]
	if !slices.Equal(ci.On.Push.Branches, []string{"main"}) || ci.On.PullRequest == nil || len(ci.Jobs["ci"].Permissions) > 0 {
		t.Errorf("ci.yaml runs on %+v with %v", ci.On, ci.Jobs["ci"].Permissions)
	}
	both, last := ci.Jobs["ci"].Strategy.Matrix["kubernetes"], len(ci.Jobs["ci"].Steps)-1
	if len(both) != 2 || last < 0 || ci.Jobs["ci"].Steps[last].Env["KUBERNETES"] != "${{ matrix.kubernetes }}" {
		t.Errorf("ci.yaml runs with the versions %q of Kubernetes by %+v, want the oldest and the newest", both, ci.Jobs["ci"].Steps)
	}
	if !slices.Equal(release.On.Push.Tags, []string{"v*"}) || len(release.On.Push.Branches) > 0 || release.On.PullRequest != nil {
		t.Errorf("release.yaml runs on %+v, want tags of versions only", release.On)
	}
	if got := release.Jobs["release"].Permissions; got["id-token"] != "write" || len(got) != 4 {
		t.Errorf("the release has the permissions %v", got)
	}
}
