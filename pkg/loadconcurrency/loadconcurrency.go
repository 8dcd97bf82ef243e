// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package loadconcurrency decides how many volumes a node moves at once, by its labels and the key loadConcurrency
// of Velero's node agent ConfigMap:
//
//	{"loadConcurrency": {
//	  "globalConfig": 2,
//	  "perNodeConfig": [{"nodeSelector": {"matchLabels": {"kubernetes.io/hostname": "node1"}}, "number": 3}]
//	}}
//
// globalConfig, default 1, is for nodes without a matching rule; the smallest number of several rules counts. A
// mistake in either keeps its former value. So does its absence beside an unknown key, perhaps a misspelling.
// An agent decides for its node. For a silent one, the API server predicts the decision of an agent that starts
// now.
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
	utiljson "sigs.k8s.io/json"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// Default is the limit without a configuration.
const Default = 1

// Config is the valid configuration. The zero value is Default everywhere.
type Config struct {
	global int
	rules  []rule
}

// Decision is how many volumes a node moves at once.
type Decision struct {
	Limit int
	// Source is as in Config.Limit, or "memory" if the agent's memory is the limit.
	Source  string
	Problem string
}

// Show writes the decision into an agent's status. The condition keeps the time of its last change.
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

type rule struct {
	index    int
	selector labels.Selector
	number   int
}

// Limit returns the limit for a node's labels, and its source: globalConfig, perNodeConfig[i] or default.
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

// Update returns the configuration after a ConfigMap's data, which must have one key of any name. problem has all
// mistakes in a line; the rest is valid.
func (c Config) Update(data map[string]string, binary map[string][]byte) (after Config, problem string) {
	keys := slices.AppendSeq(slices.Collect(maps.Keys(data)), maps.Keys(binary))
	if len(keys) != 1 {
		slices.Sort(keys)
		return c, fmt.Sprintf("it must have exactly one key, whose value is JSON, but has %d: %s", len(keys), strings.Join(keys, ", "))
	}
	text, isText := data[keys[0]]
	if !isText {
		text = string(binary[keys[0]]) // kubectl puts files that are not UTF-8 there
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
	errs, err := utiljson.UnmarshalStrict(text, &document)
	misspelt := len(errs) > 0
	if err == nil && len(document.LoadConcurrency) > 0 {
		var inner []error
		inner, err = utiljson.UnmarshalStrict(document.LoadConcurrency, &parts)
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
	unknown, err := utiljson.UnmarshalStrict(text, &fields)
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
