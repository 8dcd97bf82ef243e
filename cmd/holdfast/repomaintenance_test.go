// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	logsapi "k8s.io/component-base/logs/api/v1"

	"github.com/holdfast-io/holdfast/pkg/maintenance"
)

// A command that can't work says why, where the status of its pod gets it from.
func TestRepoMaintenanceFlags(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"no repository": {[]string{"--backup-storage-location=default"}, "--repo-name must be set"},
		"no location":   {[]string{"--repo-name=shop"}, "--backup-storage-location must be set"},
		"another type":  {[]string{"--repo-name=shop", "--repo-type=restic", "--backup-storage-location=default"}, `--repo-type must be kopia, but is "restic"`},
		"no namespace":  {[]string{"--repo-name=../shop", "--backup-storage-location=default"}, `but is "../shop"`},
		"no cluster":    {[]string{"--repo-name=shop", "--backup-storage-location=default", "--kubeconfig=/does/not/exist"}, "/does/not/exist"},
	} {
		t.Run(name, func(t *testing.T) {
			log := filepath.Join(t.TempDir(), "termination-log")
			if err := os.WriteFile(log, []byte("before"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := logsapi.ResetForTest(nil); err != nil { // it is applied once in a process
				t.Fatal(err)
			}
			command := newCommand()
			command.SetArgs(append([]string{"repo-maintenance", "--termination-log=" + log}, c.args...))
			err := command.ExecuteContext(t.Context())
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error is %v, want %q", err, c.want)
			}
			if ended, _ := os.ReadFile(log); string(ended) != err.Error() {
				t.Errorf("it ends with %q, and the error is %q", ended, err)
			}
		})
	}
}

func TestMaintenanceFlags(t *testing.T) {
	var good maintenanceOptions
	good.addFlags(pflag.NewFlagSet("", pflag.ContinueOnError))
	if err := good.validate(); err != nil {
		t.Errorf("the defaults are refused: %v", err)
	}
	for _, bad := range []func(*maintenanceOptions){
		func(o *maintenanceOptions) { o.frequency = time.Second },
		func(o *maintenanceOptions) { o.timeout = 0 },
		func(o *maintenanceOptions) { o.limit = -1 },
		func(o *maintenanceOptions) { o.memLimit = "much" },
		func(o *maintenanceOptions) { o.cpuRequest = "-1" },
	} {
		o := good
		bad(&o)
		if err := o.validate(); err == nil {
			t.Errorf("%+v is taken", o)
		}
	}
	if got := logFlags([]string{"controller", "--v=4", "-v", "--namespace=x", "-v", "5", "--logging-format=json", "--v"}); !slices.Equal(got, []string{"--v=4", "-v=5", "--logging-format=json"}) {
		t.Errorf("the flags of the log are %v", got)
	}
}

// A repository that hangs ends with an error at its deadline, unless all are told to stop.
func TestRepoTimeout(t *testing.T) {
	hangs := func(ctx context.Context) maintenance.Result {
		<-ctx.Done()
		return maintenance.Result{Cancelled: true}
	}
	if result := withTimeout(t.Context(), time.Millisecond, hangs); result.Cancelled || result.Error != "it had not ended after 1ms" {
		t.Errorf("it says %s", result)
	}
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	for _, limit := range []time.Duration{0, time.Hour} {
		if result := withTimeout(stopped, limit, hangs); !result.Cancelled || result.Error != "" {
			t.Errorf("told to stop it says %s", result)
		}
	}
}
