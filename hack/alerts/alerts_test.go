// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package alerts tests the rules in artifacts/monitoring with Prometheus's own
// engine. It is a module of its own so that Prometheus is no dependency of Holdfast.
package alerts

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-kit/log"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/rules"
)

const (
	rulesFile = "../../artifacts/monitoring/alerts.yaml"
	// minutes is how long each case lasts.
	minutes = 40
)

// expositions are tests that have, line by line, what the controller serves, and the API
// server of schedules and of the catalogue, and what kube-apiserver serves of our APIService.
var expositions = []string{"../../pkg/controllers/backupqueue/metrics_test.go", "../../pkg/controllers/maintenance/metrics_test.go",
	"../../pkg/controllers/schedule/metrics_test.go", "../../pkg/controllers/expiry/metrics_test.go", "../../pkg/controllers/repository/repository_test.go",
	"../../pkg/controllers/repository/keybackup_test.go",
	"../../pkg/catalog/refresh/metrics_test.go", "../../pkg/controllers/storagelocation/identify_test.go",
	"../../pkg/apiserver/metrics_test.go", "../../pkg/controllers/backuprun/metrics_test.go", "../../pkg/controllers/restorerun/metrics_test.go",
	"../../pkg/lease/metrics_test.go", "../../pkg/controllers/locks/locks_test.go", "../../pkg/registry/protection/metrics_test.go",
	"../../pkg/controllers/snapshotsweep/snapshotsweep_test.go",
	"../../pkg/controllers/noderestriction/noderestriction_test.go", "testdata/kube-apiserver.txt"}

// scrape is what a target serves, minute by minute, in the notation of promtool. Keys
// are a state, a reason, or what follows holdfast_queue_; what is not named is 0. The
// series end when the target is gone. A whole name stands for all its series, and NAME/VALUE
// for the one with this value of a label.
type scrape map[string]string

// always is a value that does not change.
func always(value int) string { return fmt.Sprintf("%dx%d", value, minutes) }

// growing is a wait that has lasted that many seconds at minute 0.
func growing(from int) string { return fmt.Sprintf("%d+60x%d", from, minutes) }

func TestAlerts(t *testing.T) {
	stuck := scrape{"slots": always(2), "Running": always(1), "NextToStart": always(1), "oldest_wait_seconds": growing(0)}
	but := func(changes scrape) scrape {
		changed := maps.Clone(stuck)
		maps.Copy(changed, changes)
		return changed
	}
	// restarted lasts until minute 19, and again from minute 22 on.
	restarted := func(values scrape) []scrape {
		before, after := scrape{"*": "0x19 stale"}, scrape{"*": "_x22 0x18"}
		for key, value := range values {
			before[key] = value + "x19 stale"
			after[key] = "_x22 " + value + "x18"
		}
		return []scrape{before, after}
	}
	tests := map[string]struct {
		targets []scrape
		// fires are the minutes in which alerts fire.
		fires map[string]string
	}{
		"nothing to do": {
			targets: []scrape{{"slots": always(2)}},
		},
		"slots are free": {
			targets: []scrape{stuck},
			fires:   map[string]string{"HoldfastQueueStuck": "11-40"}, // above 300 seconds from minute 6
		},
		"slots of restores are free": {
			targets: []scrape{{"slots": always(2), "restore_slots": always(4), "holdfast_queue_blocked_restores": always(1), "oldest_wait_seconds": growing(0)}},
			fires:   map[string]string{"HoldfastRestoresStuck": "11-40"},
		},
		"snapshots of volumes are not deleted": {
			targets: []scrape{{"slots": always(2), "holdfast_snapshots/stuck": always(1)}},
			fires:   map[string]string{"HoldfastSnapshotsStuck": "5-40"},
		},
		"snapshots of volumes leave": {
			targets: []scrape{{"slots": always(2), "holdfast_snapshots/leaving": always(9), "holdfast_snapshots/kept": always(9), "holdfast_snapshots/doubt": always(9)}},
		},
		"as many restores run as may": {
			targets: []scrape{{"slots": always(2), "restore_slots": always(4), "holdfast_queue_restores": always(2), "holdfast_queue_blocked_restores": always(1), "oldest_wait_seconds": growing(0)}},
		},
		"a certificate expires in a week": {
			targets: []scrape{{"slots": always(2), "holdfast_apiserver_certificate_expiration_timestamp_seconds": "604800x40"}},
			fires:   map[string]string{"HoldfastCertificateExpires": "5-40"},
		},
		"a certificate expires in a year": {
			targets: []scrape{{"slots": always(2), "holdfast_apiserver_certificate_expiration_timestamp_seconds": "31536000x40"}},
		},
		"all slots are free": {
			targets: []scrape{but(scrape{"Running": always(0), "ConcurrencyLimit": always(7)})},
			fires:   map[string]string{"HoldfastQueueStuck": "11-40"},
		},
		"slots are free, and backups wait for a slot": {
			targets: []scrape{but(scrape{"NextToStart": always(0), "ConcurrencyLimit": always(1)})},
			fires:   map[string]string{"HoldfastQueueStuck": "11-40"},
		},
		"slots are free, and two controllers show it": {
			targets: []scrape{stuck, stuck},
			fires:   map[string]string{"HoldfastQueueStuck": "11-40"},
		},
		"slots are free, and the controller restarts": {
			targets: restarted(scrape{"slots": "2", "NextToStart": "1", "oldest_wait_seconds": "400"}),
			fires:   map[string]string{"HoldfastQueueStuck": "5-19,27-40"},
		},
		"slots are free until the controller makes up its mind": {
			targets: []scrape{but(scrape{"Running": "1x15 2x24"})},
			fires:   map[string]string{"HoldfastQueueStuck": "11-15"},
		},
		"slots are free now and then": {
			targets: []scrape{but(scrape{"Running": strings.Repeat("1x4 2 ", 7)})},
		},
		"as many run as may": {
			targets: []scrape{but(scrape{"Running": always(2), "NextToStart": always(0), "ConcurrencyLimit": always(3)})},
		},
		"as many run or are ready as may": {
			targets: []scrape{but(scrape{"Ready": always(1), "ConcurrencyLimit": always(3)})},
		},
		"what waits has not waited for long": {
			targets: []scrape{but(scrape{"oldest_wait_seconds": always(300)})},
		},
		"all that wait overlap others": {
			targets: []scrape{but(scrape{"NextToStart": always(0), "NamespaceOverlap": always(3), "ClusterScopeOverlap": always(1), "BehindOverlapping": always(2)})},
		},
		"a backup gets no place": {
			targets: []scrape{{"slots": always(2), "New": "0x9 1x30"}},
			fires:   map[string]string{"HoldfastNothingQueues": "15-40"},
		},
		"a backup gets no place, and two controllers show it": {
			targets: []scrape{{"slots": always(2), "New": always(1)}, {"slots": always(2), "New": always(1)}},
			fires:   map[string]string{"HoldfastNothingQueues": "5-40"},
		},
		"backups get a place": {
			targets: []scrape{{"slots": always(2), "New": strings.Repeat("50x3 0 ", 8)}},
		},
		"more backups have expired than may": {
			targets: []scrape{{"slots": always(2), "Frozen": "0x9 30x30"}},
			fires:   map[string]string{"HoldfastExpiryFrozen": "30-40"},
		},
		"there is no controller": {
			fires: map[string]string{"HoldfastControllerGone": "5-40", "HoldfastAPIServerGone": "5-40"},
		},
		"the controller goes": {
			targets: []scrape{{"*": "0x9 stale", "slots": "2x9 stale"}},
			fires:   map[string]string{"HoldfastControllerGone": "15-40", "HoldfastAPIServerGone": "15-40"},
		},
		"the controller restarts": {
			targets: restarted(scrape{"slots": "2"}),
		},
		"one of two controllers goes": {
			targets: []scrape{{"*": "0x9 stale", "slots": "2x9 stale"}, {"slots": always(2)}},
		},
		"a backup has waited for hours": {
			targets: []scrape{{"slots": always(1), "Running": always(1), "ConcurrencyLimit": always(1), "oldest_wait_seconds": growing(5*3600 + 50*60)}},
			fires:   map[string]string{"HoldfastQueueLong": "11-40"},
		},
		"a backup starts after hours": {
			targets: []scrape{{"slots": always(1), "Running": always(1), "oldest_wait_seconds": "21601x4 0x35"}},
			fires:   map[string]string{"HoldfastQueueLong": "0-4"},
		},
		"a store is down": {
			targets: []scrape{but(scrape{"NextToStart": always(0), "StorageUnavailable": always(2)})},
			fires:   map[string]string{"HoldfastStorageHoldsBackups": "15-40"},
		},
		"a store is down, and the controller restarts": {
			targets: restarted(scrape{"slots": "2", "StorageUnavailable": "1"}),
			fires:   map[string]string{"HoldfastStorageHoldsBackups": "15-19,37-40"},
		},
		"a schedule has no good backup": {
			targets: []scrape{{"slots": always(2), "late": "0x9 1x30"}},
			fires:   map[string]string{"HoldfastScheduleLate": "15-40"},
		},
		"claims are not protected": {
			targets: []scrape{{"slots": always(2), "holdfast_unprotected_claims": "0x9 2x30"}},
			fires:   map[string]string{"HoldfastClaimsUnprotected": "25-40"},
		},
		"expiry is frozen": {
			targets: []scrape{{"slots": always(2), "Frozen": "0x9 3x30"}},
			fires:   map[string]string{"HoldfastExpiryFrozen": "30-40"},
		},
		"a repository is not maintained": {
			targets: []scrape{{"slots": always(2), "overdue_repositories": "0x9 1x30"}},
			fires:   map[string]string{"HoldfastRepositoriesNotMaintained": "15-40"},
		},
		"a repository has snapshots of too many backups that are missing": {
			targets: []scrape{{"slots": always(2), "doubted_repositories": "0x9 2x30"}},
			fires:   map[string]string{"HoldfastSnapshotsDoubted": "15-40"},
		},
		"a store has lost data": {
			targets: []scrape{{"slots": always(2), "holdfast_repositories_damaged": "0x9 1x30"}},
			fires:   map[string]string{"HoldfastDataLost": "15-40"},
		},
		"a key is lost": {
			targets: []scrape{{"slots": always(2), "KeyMissing": "0x9 1x30"}},
			fires:   map[string]string{"HoldfastRepositoryUnusable": "20-40"},
		},
		"a disk is not mounted": {
			targets: []scrape{{"slots": always(2), "OtherStore": "0x9 1x30"}},
			fires:   map[string]string{"HoldfastOtherStore": "15-40"},
		},
		"a key was never exported": {
			targets: []scrape{{"slots": always(2), "NotExported": "0x9 1x30"}},
			fires:   map[string]string{"HoldfastKeyNotBackedUp": "25-40"},
		},
		"a key can't be written for the recovery keys": {
			targets: []scrape{{"slots": always(2), "NotWrapped": "0x9 1x30"}},
			fires:   map[string]string{"HoldfastKeyNotBackedUp": "25-40"},
		},
		"etcd was brought back from a copy": {
			targets: []scrape{{"slots": always(2), "ClonedCluster": "1x15 0x24"}},
		},
		"another cluster has the same uid": {
			targets: []scrape{{"slots": always(2), "ClonedCluster": "0x9 1x30"}},
			fires:   map[string]string{"HoldfastClonedCluster": "30-40"},
		},
		"a store has lost backups": {
			targets: []scrape{{"slots": always(2), "holdfast_catalog_suspicious": "0x9 1x30"}},
			fires:   map[string]string{"HoldfastBackupsMissing": "15-40"},
		},
		"another writer replaces metadata": {
			targets: []scrape{{"slots": always(2), "holdfast_catalog_replaced_backups": "0x9 2x30"}},
			fires:   map[string]string{"HoldfastMetadataReplaced": "15-40"},
		},
		"others store more than is listed": {
			targets: []scrape{{"slots": always(2), "holdfast_catalog_left_out_backups": "0x9 2x30"}},
			fires:   map[string]string{"HoldfastBackupsLeftOut": "15-40"},
		},
		"a store is full of folders": {
			targets: []scrape{{"slots": always(2), "holdfast_catalog_unfinished_folders": "40000x4 200000x35"}},
			fires:   map[string]string{"HoldfastTooManyFolders": "35-40"},
		},
		"NodeRestriction is off": {
			targets: []scrape{{"slots": always(2), "holdfast_node_restriction": "0x9 1x30"}},
			fires:   map[string]string{"HoldfastNodeRestrictionOff": "15-40"},
		},
		"a backup has failed": {
			targets: []scrape{{"slots": always(2), "holdfast_backups_total/Failed": "0x9 1x30"}},
			fires:   map[string]string{"HoldfastBackupFailed": "10-40"},
		},
		"a backup lacks a volume, and the controller restarts": {
			targets: restarted(scrape{"slots": "2", "holdfast_backups_total/PartiallyFailed": "3"}),
		},
		"backups are completed and cancelled": {
			targets: []scrape{{"slots": always(2), "holdfast_backups_total/Completed": "0+1x40", "holdfast_backups_total/Cancelled": "0+1x40"}},
		},
		"a restore lacks something": {
			targets: []scrape{{"slots": always(2), "holdfast_restores_total/PartiallyFailed": "0x9 1x30"}},
			fires:   map[string]string{"HoldfastRestoreFailed": "10-40"},
		},
		"a node has no agent": {
			targets: []scrape{{"slots": always(2), "holdfast_node_agents/false": "0x9 1x30"}},
			fires:   map[string]string{"HoldfastAgentMissing": "25-40"},
		},
		"an agent is replaced": {
			targets: []scrape{{"slots": always(2), "holdfast_node_agents/false": "0x9 1x5 0x24"}},
		},
		"a store refuses the credentials": {
			targets: []scrape{{"slots": always(2), "AccessDenied": "0x9 1x30"}},
			fires:   map[string]string{"HoldfastLocationUnavailable": "25-40"},
		},
		"a store does not answer for a moment": {
			targets: []scrape{{"slots": always(2), "holdfast_locations_stopped/Unreachable": "0x9 1x10 0x19"}},
		},
		"locks are not extended": {
			targets: []scrape{{"slots": always(2), "holdfast_locks_failed_seconds/ExtensionFailed": "0x9 30000x30"}},
			fires:   map[string]string{"HoldfastLocksNotExtended": "15-40"},
		},
		"locks wait for the first maintenance": {
			targets: []scrape{{"slots": always(2), "holdfast_locks_failed_seconds/Pending": "0x9 30000x30"}},
		},
		"kube-apiserver does not reach the API server": {
			targets: []scrape{{"slots": always(2), "aggregator_unavailable_apiservice": "0x9 1x30"}},
			fires:   map[string]string{"HoldfastAPIServiceUnavailable": "15-40"},
		},
		"a store is down for a moment": {
			targets: []scrape{{"slots": always(2), "StorageUnavailable": "1x14 0x25"}},
		},
	}
	series := exposed(t)
	never := map[string]bool{}
	for _, rule := range alertingRules(t) {
		never[rule.Name()] = true
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			load := "load 1m\n"
			for i, target := range tt.targets {
				load += target.load(t, series, fmt.Sprintf("10.0.0.%d:8444", i+1))
			}
			if got := firing(t, load); !maps.Equal(got, tt.fires) {
				t.Errorf("alerts fire in the minutes %v, want %v", got, tt.fires)
			}
		})
		for alert := range tt.fires {
			delete(never, alert)
		}
	}
	for alert := range never {
		t.Errorf("no case makes %s fire", alert)
	}
}

// load is the scrape as promtool's load command has it, with the labels that Prometheus
// adds.
func (s scrape) load(t *testing.T, series []labels.Labels, instance string) string {
	t.Helper()
	rest := "0x" + fmt.Sprint(minutes)
	unused := maps.Clone(s)
	if values, ok := s["*"]; ok {
		rest = values
		delete(unused, "*")
	}
	var lines strings.Builder
	for _, one := range series {
		key := strings.TrimPrefix(strings.TrimPrefix(one.Get(labels.MetricName), "holdfast_queue_"), "holdfast_repo_maintenance_")
		key = strings.TrimPrefix(strings.TrimPrefix(key, "holdfast_schedule_"), "holdfast_expiry_")
		one.Range(func(l labels.Label) {
			if l.Name != labels.MetricName {
				key = l.Value
			}
		})
		if name := one.Get(labels.MetricName); s[name] != "" {
			key = name
		} else if s[name+"/"+key] != "" {
			key = name + "/" + key
		}
		values, ok := s[key]
		if !ok {
			values = rest
		}
		delete(unused, key)
		scraped := labels.NewBuilder(one).Set("job", "holdfast-controller").Set("instance", instance).Labels()
		fmt.Fprintf(&lines, "  %s %s\n", scraped, values)
	}
	for key := range unused {
		t.Errorf("the controller serves nothing that is called %s", key)
	}
	return lines.String()
}

// firing evaluates the rules once a minute, and gives the minutes in which each alert
// fires, as 5-19,27-40.
func firing(t *testing.T, load string) map[string]string {
	t.Helper()
	loader, err := promqltest.NewLazyLoader(load, promqltest.LazyLoaderOpts{EnableAtModifier: true, EnableNegativeOffset: true})
	if err != nil {
		t.Fatal(err)
	}
	defer loader.Close()
	alerts := alertingRules(t)
	ran := map[string][]int{}
	for minute := range minutes + 1 {
		now := time.Unix(0, 0).UTC().Add(time.Duration(minute) * time.Minute)
		loader.WithSamplesTill(now, func(err error) {
			if err != nil {
				t.Fatal(err)
			}
			query := rules.EngineQueryFunc(loader.QueryEngine(), loader.Storage())
			for _, rule := range alerts {
				if _, err := rule.Eval(t.Context(), 0, now, query, nil, 0); err != nil {
					t.Fatalf("%s: %v", rule.Name(), err)
				}
			}
		})
		for _, rule := range alerts {
			for _, alert := range rule.ActiveAlerts() {
				if alert.State != rules.StateFiring {
					continue
				}
				ran[rule.Name()] = append(ran[rule.Name()], minute)
				if want := labels.FromStrings(labels.AlertName, rule.Name(), "severity", rule.Labels().Get("severity")); !labels.Equal(alert.Labels, want) {
					t.Fatalf("%s has the labels %v, want %v: it must not depend on who was scraped", rule.Name(), alert.Labels, want)
				}
				alert.Annotations.Range(func(l labels.Label) {
					if strings.Contains(l.Value, "error expanding template") {
						t.Fatalf("%s: %s: %s", rule.Name(), l.Name, l.Value)
					}
				})
			}
		}
	}
	result := map[string]string{}
	for name, at := range ran {
		var spans []string
		for start := 0; start < len(at); {
			end := start
			for end+1 < len(at) && at[end+1] == at[end]+1 {
				end++
			}
			spans = append(spans, fmt.Sprintf("%d-%d", at[start], at[end]))
			start = end + 1
		}
		result[name] = strings.Join(spans, ",")
	}
	return result
}

// A name or a label that the controller does not serve selects nothing, and is no error.
func TestTheControllerServesWhatIsSelected(t *testing.T) {
	series := exposed(t)
	for _, rule := range alertingRules(t) {
		checkSelectors(t, rule.Name(), rule.Query(), series)
	}
}

// checkSelectors looks for what a query selects in what is served.
func checkSelectors(t *testing.T, name string, query parser.Expr, series []labels.Labels) {
	t.Helper()
	parser.Inspect(query, func(node parser.Node, _ []parser.Node) error {
		selector, ok := node.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		for _, matcher := range selector.LabelMatchers {
			values := []string{matcher.Value}
			if matcher.Type == labels.MatchRegexp {
				values = matcher.SetMatches()
			}
			for _, value := range values {
				if !slices.ContainsFunc(series, func(one labels.Labels) bool {
					return one.Get(labels.MetricName) == selector.Name && one.Get(matcher.Name) == value
				}) {
					t.Errorf("%s selects %s with %s=%q, which is not in %v", name, selector.Name, matcher.Name, value, expositions)
				}
			}
		}
		return nil
	})
}

// TestAlertsSayWhatToDo: each alert has its section in the runbooks, which says what it means, what
// suffers, where to look, and what to do; and no section is about an alert that is not there.
func TestAlertsSayWhatToDo(t *testing.T) {
	page, err := os.ReadFile("../../docs/runbooks.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := map[string]string{}
	for _, section := range strings.Split(string(page), "\n## ")[1:] {
		name, text, _ := strings.Cut(section, "\n")
		sections[name] = text
	}
	for _, rule := range alertingRules(t) {
		for _, annotation := range []string{"summary", "description"} {
			if rule.Annotations().Get(annotation) == "" {
				t.Errorf("%s has no annotation %s", rule.Name(), annotation)
			}
		}
		if severity := rule.Labels().Get("severity"); severity != "critical" && severity != "warning" {
			t.Errorf("%s has the severity %q, want critical or warning", rule.Name(), severity)
		}
		want := "https://github.com/holdfast-io/holdfast/blob/main/docs/runbooks.md#" + strings.ToLower(rule.Name())
		if got := rule.Annotations().Get("runbook_url"); got != want {
			t.Errorf("%s has the runbook %q, want %q", rule.Name(), got, want)
		}
		for _, part := range []string{"**Meaning.**", "**Impact.**", "**Diagnosis.**", "**Remedy.**"} {
			if !strings.Contains(sections[rule.Name()], part) {
				t.Errorf("docs/runbooks.md has no %s of %s", part, rule.Name())
			}
		}
		delete(sections, rule.Name())
	}
	for name := range sections {
		t.Errorf("docs/runbooks.md has a section %s, which is no alert", name)
	}
}

// TestDashboard: Prometheus understands each query of the dashboard, and Holdfast serves each
// metric that it selects, with these labels.
func TestDashboard(t *testing.T) {
	content, err := os.ReadFile("../../artifacts/monitoring/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(content, &dashboard); err != nil {
		t.Fatal(err)
	}
	series, queries := exposed(t), 0
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			queries++
			query, err := parser.ParseExpr(target.Expr)
			if err != nil {
				t.Errorf("%s: %s: %v", panel.Title, target.Expr, err)
				continue
			}
			checkSelectors(t, panel.Title, query, series)
			parser.Inspect(query, func(node parser.Node, _ []parser.Node) error {
				if aggregate, ok := node.(*parser.AggregateExpr); ok {
					for _, label := range aggregate.Grouping {
						if !slices.ContainsFunc(series, func(one labels.Labels) bool { return one.Has(label) }) {
							t.Errorf("%s groups by %s, which no series has", panel.Title, label)
						}
					}
				}
				return nil
			})
		}
	}
	if queries < 10 {
		t.Errorf("the dashboard has %d queries", queries)
	}
}

// The documentation names no alert that is not in the file.
func TestAlertsOfTheDocumentation(t *testing.T) {
	var names []string
	for _, rule := range alertingRules(t) {
		names = append(names, rule.Name())
	}
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`\bHoldfast[A-Z]\w+`)
	found := false
	for _, path := range pages {
		page, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range named.FindAllString(string(page), -1) {
			found = true
			if !slices.Contains(names, name) {
				t.Errorf("%s names %s, which is no alert in %s", path, name, rulesFile)
			}
		}
	}
	if !found {
		t.Error("docs/*.md name no alert")
	}
}

func alertingRules(t *testing.T) []*rules.AlertingRule {
	t.Helper()
	manager := rules.NewManager(&rules.ManagerOptions{Logger: log.NewNopLogger()})
	groups, errs := manager.LoadGroups(time.Minute, labels.EmptyLabels(), "", nil, rulesFile)
	for _, err := range errs {
		t.Fatal(err)
	}
	var alerts []*rules.AlertingRule
	for _, group := range groups {
		alerts = append(alerts, group.AlertingRules()...)
	}
	return alerts
}

// exposed are the series that the controller serves.
func exposed(t *testing.T) (series []labels.Labels) {
	t.Helper()
	for _, path := range expositions {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		lines := regexp.MustCompile(`(?m)^((?:holdfast|aggregator)_\S+) [0-9.]+$`).FindAllStringSubmatch(string(text), -1)
		for _, line := range lines {
			one, err := parser.ParseMetric(line[1])
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(series, func(other labels.Labels) bool { return labels.Equal(one, other) }) {
				series = append(series, one)
			}
		}
		if len(lines) == 0 {
			t.Fatalf("%s has no series: name the test that has what the controller serves", path)
		}
	}
	return series
}
