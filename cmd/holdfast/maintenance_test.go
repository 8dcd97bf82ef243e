// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"
)

// The controller's manifest shows each flag of the maintenance, with its default, and so do the
// pages about them.
func TestMaintenanceFlagsAreShown(t *testing.T) {
	text, err := os.ReadFile("../../artifacts/deploy/controller.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var controller appsv1.Deployment
	if err := yaml.UnmarshalStrict(text, &controller); err != nil {
		t.Fatal(err)
	}
	args := controller.Spec.Template.Spec.Containers[0].Args
	var pages []string
	for _, page := range []string{"../../docs/maintenance.md", "../../docs/install.md"} {
		content, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, string(content))
	}
	options := &maintenanceOptions{}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	options.addFlags(flags)
	flags.VisitAll(func(flag *pflag.Flag) {
		at := slices.IndexFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--"+flag.Name+"=") })
		if at < 0 {
			t.Errorf("the manifest does not show --%s", flag.Name)
			return
		}
		if err := flag.Value.Set(strings.TrimPrefix(args[at], "--"+flag.Name+"=")); err != nil || flag.DefValue != "" && flag.Value.String() != flag.DefValue {
			t.Errorf("the manifest has %s, and the default is %q (%v)", args[at], flag.DefValue, err)
		}
		for _, page := range pages {
			if !strings.Contains(page, "`--"+flag.Name+"`") {
				t.Errorf("a page does not show --%s", flag.Name)
			}
		}
	})
	if err := options.validate(); err != nil {
		t.Error(err)
	}
}
