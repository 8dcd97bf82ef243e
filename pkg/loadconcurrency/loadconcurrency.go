// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package loadconcurrency decides how many volumes a node moves at once, by a document
// that an administrator writes and the labels of the node. The document is the key
// loadConcurrency of Velero's node agent ConfigMap, which is JSON:
//
//	{"loadConcurrency": {
//	  "globalConfig": 2,
//	  "perNodeConfig": [{"nodeSelector": {"matchLabels": {"kubernetes.io/hostname": "node1"}}, "number": 3}]
//	}}
//
// globalConfig holds for the nodes that no rule of perNodeConfig matches, and is 1 where
// it is missing. Of several rules that match, the smallest number counts. Numbers begin
// at 1 and have no upper end.
//
// A mistake in a part of the document leaves that part as it was before, so that an edit
// that went wrong takes no node's limit away. The parts are globalConfig and the list
// perNodeConfig, which is one part since its rules have no names. Where there is no
// before, globalConfig is 1, and the list is empty. A part that is missing beside a key
// that is not known stays as it was, too: the key may be its name misspelt.
//
// The agent of a node decides by it, from when it starts. For a node whose agent says
// nothing, the API server does, as an agent would that starts now.
package loadconcurrency

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	sigsjson "sigs.k8s.io/json"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// Default is the limit where nothing says otherwise.
const Default = 1

// Config is what holds. The zero value is what holds without a document: Default
// everywhere.
type Config struct {
	// global is 0 where the document says nothing.
	global int
	rules  []rule
}

// Decision is how many volumes a node moves at once.
type Decision struct {
	Limit int
	// Source is what says so: see Config.Limit; or "memory", where that of an agent allows
	// no more.
	Source string
	// Problem is what is wrong with the ConfigMap, or with reading it; empty if nothing is.
	Problem string
}

// Show writes the decision into the status of a node's agent. The condition keeps the time
// since when it has been as it is.
func (d Decision) Show(status *v1alpha1.NodeAgentStatus, now time.Time) {
	status.Limit, status.LimitSource = int32(min(d.Limit, math.MaxInt32)), d.Source
	configured := metav1.Condition{
		Type: v1alpha1.ConditionAgentConfigured, Status: metav1.ConditionTrue, Reason: "Valid", LastTransitionTime: metav1.NewTime(now),
	}
	if d.Problem != "" {
		configured.Status, configured.Reason, configured.Message = metav1.ConditionFalse, "InvalidConcurrency", d.Problem
	}
	meta.SetStatusCondition(&status.Conditions, configured)
}

// rule limits the nodes that it matches.
type rule struct {
	index    int // in perNodeConfig
	selector labels.Selector
	number   int
}

// Limit returns how many volumes a node with these labels moves at once, and what part
// of the document says so: globalConfig, perNodeConfig[i], or default.
func (c Config) Limit(node labels.Set) (limit int, source string) {
	limit, source = Default, "default"
	if c.global > 0 {
		limit, source = c.global, "globalConfig"
	}
	matched := false
	for _, rule := range c.rules {
		if rule.selector.Matches(node) && (!matched || rule.number < limit) {
			limit, source, matched = rule.number, fmt.Sprintf("perNodeConfig[%d]", rule.index), true
		}
	}
	return limit, source
}

// Update returns what holds with the data and the binary data of a ConfigMap, which must have one
// key together, whose name does not matter. The problem is all that is wrong with it, in one line;
// what it is not about holds.
func (c Config) Update(data map[string]string, binary map[string][]byte) (after Config, problem string) {
	keys := slices.AppendSeq(slices.Collect(maps.Keys(data)), maps.Keys(binary))
	if len(keys) != 1 {
		slices.Sort(keys)
		return c, fmt.Sprintf("it must have exactly one key, whose value is JSON, but has %d: %s", len(keys), strings.Join(keys, ", "))
	}
	text, isText := data[keys[0]]
	if !isText {
		text = string(binary[keys[0]]) // where kubectl puts a file that is not UTF-8
	}
	c, err := c.update([]byte(text))
	if err != nil {
		problem = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	return c, problem
}

func (c Config) update(text []byte) (Config, error) {
	var document struct {
		LoadConcurrency json.RawMessage `json:"loadConcurrency"`
	}
	var parts struct {
		GlobalConfig  json.RawMessage `json:"globalConfig"`
		PerNodeConfig json.RawMessage `json:"perNodeConfig"`
	}
	// errs are the mistakes beside the parts, or above them if they are all missing.
	errs, err := sigsjson.UnmarshalStrict(text, &document)
	misspelt := len(errs) > 0
	if err == nil && len(document.LoadConcurrency) > 0 {
		var inner []error
		inner, err = sigsjson.UnmarshalStrict(document.LoadConcurrency, &parts)
		errs, misspelt = append(errs, inner...), len(inner) > 0
	}
	if err != nil {
		return c, fmt.Errorf("it is not the JSON that is expected: %w", err)
	}
	if len(parts.GlobalConfig) > 0 || !misspelt {
		global, err := globalConfig(parts.GlobalConfig)
		if err == nil {
			c.global = global
		}
		errs = append(errs, err)
	}
	if len(parts.PerNodeConfig) > 0 || !misspelt {
		rules, err := perNodeConfig(parts.PerNodeConfig)
		if err == nil {
			c.rules = rules
		}
		errs = append(errs, err)
	}
	return c, errors.Join(errs...)
}

func globalConfig(text json.RawMessage) (int, error) {
	if len(text) == 0 || string(text) == "null" {
		return 0, nil
	}
	number, err := parseNumber(text)
	if err != nil {
		return 0, fmt.Errorf("globalConfig: %w", err)
	}
	return number, nil
}

func perNodeConfig(list json.RawMessage) (rules []rule, err error) {
	var texts []json.RawMessage
	if len(list) > 0 {
		if err := json.Unmarshal(list, &texts); err != nil {
			return nil, fmt.Errorf("perNodeConfig: it must be a list of rules: %w", err)
		}
	}
	var errs []error
	for i, text := range texts {
		rule, err := parseRule(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("perNodeConfig[%d]: %w", i, err))
			continue
		}
		rule.index = i
		rules = append(rules, rule)
	}
	return rules, errors.Join(errs...)
}

func parseRule(text json.RawMessage) (rule, error) {
	var fields struct {
		NodeSelector *metav1.LabelSelector `json:"nodeSelector"`
		Number       json.RawMessage       `json:"number"`
	}
	unknown, err := sigsjson.UnmarshalStrict(text, &fields)
	if err = errors.Join(append(unknown, err)...); err != nil {
		return rule{}, err
	}
	if fields.NodeSelector == nil {
		return rule{}, errors.New(`nodeSelector is missing; {} matches every node`)
	}
	selector, err := metav1.LabelSelectorAsSelector(fields.NodeSelector)
	if err != nil {
		return rule{}, fmt.Errorf("nodeSelector: %w", err)
	}
	number, err := parseNumber(fields.Number)
	if err != nil {
		return rule{}, fmt.Errorf("number: %w", err)
	}
	return rule{selector: selector, number: number}, nil
}

func parseNumber(text json.RawMessage) (int, error) {
	var number int
	if err := json.Unmarshal(text, &number); err != nil || number < 1 {
		return 0, fmt.Errorf("must be a whole number of at least 1, but is %q", text)
	}
	return number, nil
}
