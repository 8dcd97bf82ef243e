// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package loadconcurrency

import (
	"math"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// good has a number for every node, for those of zone a, for the small ones, and for
// the node one.
const good = `{"loadConcurrency": {"globalConfig": 4, "perNodeConfig": [
	{"nodeSelector": {"matchLabels": {"zone": "a"}}, "number": 6},
	{"nodeSelector": {"matchExpressions": [{"key": "size", "operator": "In", "values": ["small", "tiny"]}]}, "number": 2},
	{"nodeSelector": {"matchLabels": {"kubernetes.io/hostname": "one"}}, "number": 300}]}}`

func TestLimit(t *testing.T) {
	config, problem := Config{}.Update(map[string]string{"any-name": good}, nil)
	if problem != "" {
		t.Fatal(problem)
	}
	for _, test := range []struct {
		node   labels.Set
		limit  int
		source string
	}{
		{nil, 4, "globalConfig"},
		{labels.Set{"zone": "b"}, 4, "globalConfig"},
		{labels.Set{"zone": "a"}, 6, "perNodeConfig[0]"},
		{labels.Set{"zone": "a", "size": "tiny"}, 2, "perNodeConfig[1]"},
		{labels.Set{"size": "small", "kubernetes.io/hostname": "one"}, 2, "perNodeConfig[1]"},
		{labels.Set{"kubernetes.io/hostname": "one"}, 300, "perNodeConfig[2]"},
	} {
		if limit, source := config.Limit(test.node); limit != test.limit || source != test.source {
			t.Errorf("%v: %d by %s, want %d by %s", test.node, limit, source, test.limit, test.source)
		}
	}
	if limit, source := (Config{}).Limit(labels.Set{"zone": "a"}); limit != 1 || source != "default" {
		t.Errorf("without a document: %d by %s", limit, source)
	}
}

// TestMistakes: what is wrong leaves its part as it was, which at a start is the default.
func TestMistakes(t *testing.T) {
	rules := func(rules string) string {
		return `{"loadConcurrency": {"globalConfig": 7, "perNodeConfig": [` + rules + `]}}`
	}
	const small, zone = `{"nodeSelector": {"matchLabels": {"size": "small"}}, "number": 3}`, `{"nodeSelector": {"matchLabels": {"zone": "a"}}, `
	for name, test := range map[string]struct {
		text string
		// wrong is in the problem; empty means that there is none.
		wrong string
		// The limits of three nodes, after the good document and at a start.
		other, small, zone                int
		otherFirst, smallFirst, zoneFirst int
	}{
		"empty":                     {`{}`, "", 1, 1, 1, 1, 1, 1},
		"an empty part":             {`{"loadConcurrency": {}}`, "", 1, 1, 1, 1, 1, 1},
		"null":                      {`{"loadConcurrency": {"globalConfig": null, "perNodeConfig": null}}`, "", 1, 1, 1, 1, 1, 1},
		"global alone":              {`{"loadConcurrency": {"globalConfig": 9}}`, "", 9, 9, 9, 9, 9, 9},
		"rules alone":               {`{"loadConcurrency": {"perNodeConfig": [` + small + `]}}`, "", 1, 3, 1, 1, 3, 1},
		"all nodes":                 {rules(`{"nodeSelector": {}, "number": 5},` + small), "", 5, 3, 5, 5, 3, 5},
		"the same twice":            {rules(small + `,` + small), "", 7, 3, 7, 7, 3, 7},
		"not JSON":                  {`loadConcurrency: 3`, "not the JSON", 4, 2, 6, 1, 1, 1},
		"cut":                       {good[:100], "not the JSON", 4, 2, 6, 1, 1, 1},
		"a list":                    {`[]`, "not the JSON", 4, 2, 6, 1, 1, 1},
		"no list of rules":          {`{"loadConcurrency": {"perNodeConfig": 3}}`, "a list of rules", 1, 2, 6, 1, 1, 1},
		"no list beside a global":   {`{"loadConcurrency": {"globalConfig": 8, "perNodeConfig": ` + small + `}}`, "a list of rules", 8, 2, 6, 8, 8, 8},
		"Velero's other keys":       {`{"loadAffinity": [], "loadConcurrency": {"globalConfig": 8, "prepareQueueLength": 2}}`, "prepareQueueLength", 8, 2, 6, 8, 8, 8},
		"Velero's keys beside it":   {`{"loadAffinity": [], "loadConcurrency": {"globalConfig": 8}}`, "loadAffinity", 8, 8, 8, 8, 8, 8},
		"a global misspelt":         {`{"loadConcurrency": {"globalConfg": 8, "perNodeConfig": [` + small + `]}}`, "globalConfg", 4, 3, 4, 1, 3, 1},
		"rules misspelt":            {`{"loadConcurrency": {"globalConfig": 8, "perNodeConfg": [` + small + `]}}`, "perNodeConfg", 8, 2, 6, 8, 8, 8},
		"rules that are none":       {`{"loadConcurrency": {"globalConfg": 8, "perNodeConfig": []}}`, "globalConfg", 4, 4, 4, 1, 1, 1},
		"none beside another key":   {`{"loadConcurrency": {"globalConfig": null, "perNodeConfig": [], "prepareQueueLength": 2}}`, "prepareQueueLength", 1, 1, 1, 1, 1, 1},
		"another spelling":          {`{"LoadConcurrency": {"globalConfig": 8}}`, "LoadConcurrency", 4, 2, 6, 1, 1, 1},
		"twice":                     {`{"loadConcurrency": {"globalConfig": 8, "globalConfig": 9}}`, "duplicate", 9, 2, 6, 9, 9, 9},
		"zero":                      {`{"loadConcurrency": {"globalConfig": 0, "perNodeConfig": [` + small + `]}}`, `globalConfig: must be a whole number of at least 1, but is "0"`, 4, 3, 4, 1, 3, 1},
		"negative":                  {`{"loadConcurrency": {"globalConfig": -1}}`, "globalConfig", 4, 4, 4, 1, 1, 1},
		"a text":                    {`{"loadConcurrency": {"globalConfig": "2"}}`, "globalConfig", 4, 4, 4, 1, 1, 1},
		"a fraction":                {`{"loadConcurrency": {"globalConfig": 2.5}}`, "globalConfig", 4, 4, 4, 1, 1, 1},
		"too large":                 {`{"loadConcurrency": {"globalConfig": 99999999999999999999}}`, "globalConfig", 4, 4, 4, 1, 1, 1},
		"a rule of zero":            {rules(small + `,` + zone + `"number": 0}`), "perNodeConfig[1]: number", 7, 2, 6, 7, 7, 7},
		"a rule without a number":   {rules(small + `,` + zone + `"numbr": 3}`), `perNodeConfig[1]: unknown field "numbr"`, 7, 2, 6, 7, 7, 7},
		"a rule with nothing":       {rules(small + `,{}`), "perNodeConfig[1]: nodeSelector is missing", 7, 2, 6, 7, 7, 7},
		"a rule with two numbers":   {rules(small + `,` + zone + `"number": 2, "number": 3}`), "perNodeConfig[1]: duplicate", 7, 2, 6, 7, 7, 7},
		"a rule that is null":       {rules(small + `,null`), "perNodeConfig[1]: nodeSelector is missing", 7, 2, 6, 7, 7, 7},
		"an unknown operator":       {rules(small + `,{"nodeSelector": {"matchExpressions": [{"key": "zone", "operator": "Like", "values": ["a"]}]}, "number": 3}`), `perNodeConfig[1]: nodeSelector: "Like"`, 7, 2, 6, 7, 7, 7},
		"a value that can't be one": {rules(small + `,{"nodeSelector": {"matchLabels": {"zone": "not a value"}}, "number": 3}`), "perNodeConfig[1]: nodeSelector", 7, 2, 6, 7, 7, 7},
		"all wrong":                 {`{"loadConcurrency": {"globalConfig": 0, "perNodeConfig": [{"number": 1}, {"number": 2}]}}`, "perNodeConfig[0]: nodeSelector is missing; {} matches every node; perNodeConfig[1]: nodeSelector", 4, 2, 6, 1, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			before, problem := Config{}.Update(map[string]string{"a": good}, nil)
			if problem != "" {
				t.Fatal(problem)
			}
			for _, start := range []struct {
				config             Config
				other, small, zone int
			}{
				{before, test.other, test.small, test.zone},
				{Config{}, test.otherFirst, test.smallFirst, test.zoneFirst},
			} {
				config, problem := start.config.Update(map[string]string{"a": test.text}, nil)
				if (problem == "") != (test.wrong == "") || !strings.Contains(problem, test.wrong) || strings.Contains(problem, "\n") {
					t.Errorf("the problem is %q, want one with %q", problem, test.wrong)
				}
				for _, node := range []struct {
					labels labels.Set
					want   int
				}{{nil, start.other}, {labels.Set{"size": "small"}, start.small}, {labels.Set{"zone": "a"}, start.zone}} {
					if limit, source := config.Limit(node.labels); limit != node.want {
						t.Errorf("after %+v, %v: %d by %s, want %d", start.config, node.labels, limit, source, node.want)
					}
				}
			}
		})
	}
}

func TestKeys(t *testing.T) {
	before, problem := Config{}.Update(map[string]string{"a": good}, nil)
	if problem != "" {
		t.Fatal(problem)
	}
	const other = `{"loadConcurrency": {"globalConfig": 9}}`
	for name, test := range map[string]struct {
		data    map[string]string
		binary  map[string][]byte
		problem string
	}{
		"none":             {nil, nil, "but has 0"},
		"two":              {map[string]string{"b": "{}", "a": other}, nil, "but has 2: a, b"},
		"a binary one too": {map[string]string{"b": other}, map[string][]byte{"a": nil}, "but has 2: a, b"},
		"in UTF-16":        {nil, map[string][]byte{"a": []byte("\xff\xfe{\x00}\x00")}, "not the JSON"},
	} {
		config, problem := before.Update(test.data, test.binary)
		if !strings.Contains(problem, test.problem) {
			t.Errorf("%s: the problem is %q, want one with %q", name, problem, test.problem)
		}
		if limit, _ := config.Limit(nil); limit != 4 {
			t.Errorf("%s: the limit is %d", name, limit)
		}
	}
}

// TestShow: numbers have no upper end, but the status has; and the condition says since when it
// has been so.
func TestShow(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var status v1alpha1.NodeAgentStatus
	for minute, step := range []struct {
		decision Decision
		limit    int32
		want     metav1.ConditionStatus
		since    int // minute
	}{
		{Decision{Limit: 3, Source: "globalConfig"}, 3, metav1.ConditionTrue, 0},
		{Decision{Limit: 2, Source: "default", Problem: "a mistake"}, 2, metav1.ConditionFalse, 1},
		{Decision{Limit: 1 << 31, Source: "perNodeConfig[0]", Problem: "another"}, math.MaxInt32, metav1.ConditionFalse, 1},
		{Decision{Limit: 1, Source: "memory"}, 1, metav1.ConditionTrue, 3},
	} {
		step.decision.Show(&status, begin.Add(time.Duration(minute)*time.Minute))
		if status.Limit != step.limit || status.LimitSource != step.decision.Source || len(status.Conditions) != 1 {
			t.Errorf("in minute %d it shows %+v", minute, status)
		}
		since := begin.Add(time.Duration(step.since) * time.Minute)
		if c := status.Conditions[0]; c.Type != v1alpha1.ConditionAgentConfigured || c.Status != step.want || c.Message != step.decision.Problem || !c.LastTransitionTime.Time.Equal(since) {
			t.Errorf("in minute %d the condition is %+v, want %s since minute %d", minute, c, step.want, step.since)
		}
	}
}
