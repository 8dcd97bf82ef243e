// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hooks is common to hooks of backups and restores: it selects pods, parses annotations, and
// runs commands in containers.
package hooks

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"

	"github.com/holdfast-io/holdfast/pkg/selection"
)

const (
	DefaultTimeout = 30 * time.Second
	maxCommand     = 16 << 10
)

var podsResource = schema.GroupResource{Resource: "pods"}

// Words select the pods of an entry of a spec's hooks.
type Words struct {
	Name                                   string
	IncludedNamespaces, ExcludedNamespaces []string
	IncludedResources, ExcludedResources   []string
	LabelSelector                          *metav1.LabelSelector
}

// Selector selects an entry's pods.
type Selector struct {
	pods       bool
	namespaces *selection.Namespaces
	labels     labels.Selector
}

// Parse parses a validated spec's words.
func (w Words) Parse() (*Selector, error) {
	namespaces, problems := selection.ParseNamespaces(w.IncludedNamespaces, w.ExcludedNamespaces, nil)
	resources, more := selection.ParseResources(selection.ResourceLists{IncludedResources: w.IncludedResources, ExcludedResources: w.ExcludedResources}, namespaces, nil)
	if err := append(problems, more...).ToAggregate(); err != nil {
		return nil, fmt.Errorf("the hooks %s: %w", w.Name, err)
	}
	selector := labels.Everything()
	if w.LabelSelector != nil {
		var err error
		if selector, err = metav1.LabelSelectorAsSelector(w.LabelSelector); err != nil {
			return nil, fmt.Errorf("the hooks %s: a label selector: %w", w.Name, err)
		}
	}
	return &Selector{resources.Bind(pods.Resolve).Included(podsResource, true), namespaces, selector}, nil
}

// pods: only they have containers.
var pods = func() selection.Called {
	called := selection.Called{}
	called.Add(podsResource, "pod", "po")
	return called
}()

// Idle returns a text for each word that selects no pods, or excludes all.
func (w Words) Idle() (texts []string) {
	for _, word := range w.IncludedResources {
		if !pods.Means(word, podsResource) {
			texts = append(texts, fmt.Sprintf("the hooks %s have %q in includedResources, which applies to nothing: hooks run in pods alone", w.Name, word))
		}
	}
	for _, word := range w.ExcludedResources {
		if pods.Means(word, podsResource) {
			texts = append(texts, fmt.Sprintf("the hooks %s have %q in excludedResources, so that they never run: hooks run in pods alone", w.Name, word))
		} else {
			texts = append(texts, fmt.Sprintf("the hooks %s have %q in excludedResources, which applies to nothing: hooks run in pods alone", w.Name, word))
		}
	}
	return texts
}

// Matches reports whether a pod has the hooks.
func (s *Selector) Matches(pod *corev1.Pod) bool {
	return s.pods && s.namespaces.Match(pod.Namespace) && s.labels.Matches(labels.Set(pod.Labels))
}

// Command parses an annotation: a JSON list, or else one word.
func Command(annotation string) []string {
	var words []string
	if json.Unmarshal([]byte(annotation), &words) == nil && len(words) > 0 {
		return words
	}
	return []string{annotation}
}

// Container returns the container for a command, by default the first; problem says why it can't run
// there.
func Container(pod *corev1.Pod, name string, command []string) (container, problem string) {
	containers := slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers)
	switch {
	case len(strings.Join(command, " ")) > maxCommand:
		return name, fmt.Sprintf("its command is longer than %d bytes", maxCommand)
	case len(containers) == 0:
		return name, "the pod has no container"
	case name == "":
		return containers[0].Name, ""
	case len(utilvalidation.IsDNS1123Label(name)) > 0:
		return "", "the name of its container can't be one"
	case !slices.ContainsFunc(containers, func(c corev1.Container) bool { return c.Name == name }):
		return name, fmt.Sprintf("the pod has no container %q", name)
	}
	return name, ""
}
