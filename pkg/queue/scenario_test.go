// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/selection"
)

var update = flag.Bool("update", false, "rewrite the recorded output in testdata")

const systemNamespace = "holdfast"

// TestScenarios runs testdata/*.txt. A file is a sequence of blocks, separated
// by empty lines: commands, `----`, and their output as recorded. Lines that
// start with # say why. See scenario.run for the commands.
// Pitfalls 2, 11, 16, 20, 21, 23 and 24: the files restart, tickets, overlap,
// cluster-scope, slots and storage.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			recorded, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			s := scenario{t: t, epoch: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
			s.now = s.epoch
			s.snapshot.Limits = Slots{1, 4}
			s.snapshot.Locations = map[string]LocationState{"default": {Available: true}}
			var blocks []string
			for _, block := range strings.Split(strings.TrimSpace(string(recorded)), "\n\n") {
				commands, _, _ := strings.Cut(block, "\n----")
				out := ""
				for _, line := range strings.Split(commands, "\n") {
					if !strings.HasPrefix(line, "#") {
						out += s.run(strings.Fields(line))
					}
				}
				if out != "" {
					commands += "\n----\n" + strings.TrimSuffix(out, "\n")
				}
				blocks = append(blocks, commands)
			}
			got := strings.Join(blocks, "\n\n") + "\n"
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(recorded), got); diff != "" {
				t.Errorf("run with -update and review the difference (-recorded +got):\n%s", diff)
			}
		})
	}
}

type scenario struct {
	t          *testing.T
	snapshot   Snapshot
	epoch, now time.Time
}

// run executes one command and returns what it prints.
//
//	limit N [RESTORES]          sets the limit, and that of restores
//	namespaces NAME...          are those that exist
//	location NAME up|down [WHY...]
//	create NAME [restore] [namespace=N] [include=A,B] [exclude=A,B] [unreadable] [cluster] [location=L] [at=MINUTES]
//	phase PHASE NAME...         sets the phase of runs
//	cancel NAME...              asks for their cancellation
//	ticket N NAME               forges a ticket
//	remove NAME...              removes the records
//	restart                     of the controller: what was InProgress is Failed
//	apply                       does what the plan says: tickets, then starts
//	plan                        prints the plan
//	show NAME                   prints an entry in full, as it is and as a reader sees it
//
// The clock advances by a minute with each create and apply.
func (s *scenario) run(args []string) string {
	s.t.Helper()
	command, args := args[0], args[1:]
	switch command {
	case "limit":
		for c, n := range args {
			s.snapshot.Limits[c] = s.number(n)
		}
	case "namespaces":
		s.snapshot.Namespaces = args
	case "location":
		s.snapshot.Locations[args[0]] = LocationState{Available: args[1] == "up", Message: strings.Join(args[2:], " ")}
	case "create":
		s.create(args[0], args[1:])
	case "phase":
		for _, name := range args[1:] {
			s.find(name).Phase = v1alpha1.BackupPhase(args[0])
		}
	case "cancel":
		for _, name := range args {
			s.find(name).Cancelled = true
		}
	case "ticket":
		s.find(args[1]).Ticket = int64(s.number(args[0]))
	case "remove":
		s.snapshot.Runs = slices.DeleteFunc(s.snapshot.Runs, func(r Run) bool { return slices.Contains(args, r.Name) })
	case "restart":
		for i := range s.snapshot.Runs {
			if r := &s.snapshot.Runs[i]; r.Phase == v1alpha1.BackupPhaseInProgress {
				r.Phase = v1alpha1.BackupPhaseFailed
			}
		}
	case "apply":
		s.now = s.now.Add(time.Minute)
		apply(&s.snapshot, s.decide(), s.now)
	case "plan":
		return formatPlan(s.decide())
	case "show":
		return s.show(args[0])
	default:
		s.t.Fatalf("unknown command %q", command)
	}
	return ""
}

func (s *scenario) create(name string, options []string) {
	s.now = s.now.Add(time.Minute)
	r := Run{Namespace: systemNamespace, Name: name, CreatedAt: s.now, Location: "default"}
	var included, excluded []string
	readable := true
	for _, option := range options {
		key, value, _ := strings.Cut(option, "=")
		switch key {
		case "restore":
			r.Class = Restore
		case "namespace":
			r.Namespace = value
		case "include":
			included = strings.Split(value, ",")
		case "exclude":
			excluded = strings.Split(value, ",")
		case "unreadable":
			readable = false
		case "cluster":
			r.ClusterScoped = true
		case "location":
			r.Location = value
		case "at":
			r.CreatedAt = s.epoch.Add(time.Duration(s.number(value)) * time.Minute)
		default:
			s.t.Fatalf("unknown option %q", option)
		}
	}
	r.UID = types.UID(r.Namespace + "." + name)
	if readable {
		var errs error
		r.Selection, errs = parseSelection(included, excluded)
		if errs != nil {
			s.t.Fatal(errs)
		}
	}
	s.snapshot.Runs = append(s.snapshot.Runs, r)
}

func parseSelection(included, excluded []string) (*selection.Namespaces, error) {
	n, errs := selection.ParseNamespaces(included, excluded, nil)
	return n, errs.ToAggregate()
}

func (s *scenario) number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

func (s *scenario) find(name string) *Run {
	for i := range s.snapshot.Runs {
		if s.snapshot.Runs[i].Name == name {
			return &s.snapshot.Runs[i]
		}
	}
	s.t.Fatalf("no run %q", name)
	return nil
}

func (s *scenario) decide() Plan {
	plan, err := decide(s.snapshot)
	if err != nil {
		s.t.Fatal(err)
	}
	return plan
}

// apply makes the writes that a plan asks for.
func apply(s *Snapshot, plan Plan, now time.Time) {
	for i := range s.Runs {
		r := &s.Runs[i]
		for _, ticket := range plan.Tickets {
			if ticket.UID == r.UID {
				r.Phase, r.Ticket, r.WaitingSince = v1alpha1.BackupPhaseQueued, ticket.Ticket, now
			}
		}
		if slices.Contains(plan.Start, r.UID) {
			r.Phase = v1alpha1.BackupPhaseReadyToStart
		}
	}
}

func formatPlan(p Plan) string {
	var b strings.Builder
	inUse, restores := p.InUse, p.InUse[Restore] > 0
	for _, e := range p.Entries {
		restores = restores || e.Class == Restore
		if e.Reason == v1alpha1.QueueReasonNextToStart {
			inUse[e.Class]--
		}
	}
	fmt.Fprintf(&b, "slots: %d of %d in use\n", inUse[Backup], p.Limits[Backup])
	if restores {
		fmt.Fprintf(&b, "slots of restores: %d of %d in use\n", inUse[Restore], p.Limits[Restore])
	}
	for _, a := range p.Tickets {
		fmt.Fprintf(&b, "ticket: %s %d\n", a.UID, a.Ticket)
	}
	for _, key := range p.Start {
		fmt.Fprintf(&b, "start: %s\n", key)
	}
	for _, e := range p.Entries {
		line := fmt.Sprintf("%d %s/%s %s %s", e.Position, e.Namespace, e.Name, e.State, e.Reason)
		if e.Class == Restore {
			line = fmt.Sprintf("%d restore %s/%s %s %s", e.Position, e.Namespace, e.Name, e.State, e.Reason)
		}
		if e.Message != "" {
			line += ": " + e.Message
		}
		fmt.Fprintln(&b, strings.TrimSuffix(line, " "))
	}
	return b.String()
}

func (s *scenario) show(name string) string {
	for _, e := range s.decide().Entries {
		if e.Name != name {
			continue
		}
		var b strings.Builder
		seen := Redact(e, systemNamespace)
		for _, view := range []struct {
			title string
			Entry
		}{{"entry", e}, {"as seen in " + e.Namespace, seen}} {
			fmt.Fprintf(&b, "%s: %s %d since %s: %s\n", view.title, view.State, view.Position,
				view.WaitingSince.Sub(s.epoch), view.Message)
			var blockers []string
			for _, blocker := range view.Blockers {
				blockers = append(blockers, string(blocker.UID))
			}
			fmt.Fprintf(&b, "  blockers %v and %d others, conflicts %v\n", blockers, view.OtherBlockers.Sum(), view.ConflictNamespaces)
		}
		return b.String()
	}
	s.t.Fatalf("no entry %q", name)
	return ""
}
