// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCommands(t *testing.T) {
	tests := map[string]struct {
		args []string // DIR stands for a folder that does not exist
		out  string   // what is printed has this in it
		err  string   // the error has this in it; none if empty
	}{
		"down without a lab is done":         {args: []string{"down", "--dir", "DIR"}, out: "no lab in"},
		"status without a lab says so":       {args: []string{"status", "--dir", "DIR"}, out: "no lab in"},
		"build names the versions there are": {args: []string{"build", "--bin", "DIR", "--kubernetes", "1.2.3"}, err: "choose one of 1."},
		"up names the command to run first":  {args: []string{"up", "--dir", "DIR", "--bin", "DIR"}, err: "lab build --bin"},
		"up refuses a negative count":        {args: []string{"up", "--dir", "DIR", "--nodes", "-1"}, err: "--nodes is -1"},
		"up refuses too many nodes":          {args: []string{"up", "--dir", "DIR", "--nodes", "1000"}, err: "give 0 to 50"},
		"holdfast needs a lab":               {args: []string{"holdfast", "up", "--dir", "DIR"}, err: "no lab runs in"},
		"holdfast counts its agents":         {args: []string{"holdfast", "up", "--dir", "DIR", "--agents", "-1"}, err: "--agents is -1"},
		"restart needs a role":               {args: []string{"holdfast", "restart", "--dir", "DIR"}, err: "accepts 1 arg"},
		"an image needs a lab":               {args: []string{"image", "--dir", "DIR"}, err: "no lab runs in"},
		"a registry needs a lab":             {args: []string{"registry", "--dir", "DIR"}, err: "no lab runs in"},
		"s3 needs a lab":                     {args: []string{"s3", "up", "--dir", "DIR"}, err: "no lab runs in"},
		"csi needs a lab":                    {args: []string{"csi", "up", "--dir", "DIR"}, err: "no lab runs in"},
		"unknown words are refused":          {args: []string{"down", "--dir", "DIR", "all"}, err: "unknown command"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "lab")
			var args []string
			for _, a := range tc.args {
				args = append(args, strings.ReplaceAll(a, "DIR", dir))
			}
			var out bytes.Buffer
			c := command()
			c.SetArgs(args)
			c.SetOut(&out)
			err := c.ExecuteContext(t.Context())
			switch {
			case tc.err == "" && err != nil:
				t.Errorf("error %v", err)
			case tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)):
				t.Errorf("error %v, want one with %q", err, tc.err)
			}
			if !strings.Contains(out.String(), tc.out) {
				t.Errorf("it says %q, want %q in it", out.String(), tc.out)
			}
			if _, err := os.Stat(filepath.Join(dir, "lab.json")); err == nil {
				t.Error("it left the mark of a lab")
			}
		})
	}
}
