// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// SuccessionsKey has the namespaces that restores have recreated, one a line: the name and its successive uids.
const SuccessionsKey = "namespaces"

// maxSuccessionBytes bounds SuccessionsKey: some 7,000 namespaces. A ConfigMap has 1 MiB.
const maxSuccessionBytes = 768 << 10

// Succession says that a namespace continues a former one of its name.
type Succession struct {
	Namespace   string
	Former, UID types.UID
}

// Successions has, by namespace name, lines of uids that continue one another.
type Successions map[string][][]types.UID

// SuccessionsOf reads the ConfigMap; nil is empty. It skips unreadable lines.
func SuccessionsOf(stored *corev1.ConfigMap) Successions {
	successions := Successions{}
	if stored == nil {
		return successions
	}
	for text := range strings.Lines(stored.Data[SuccessionsKey]) {
		words := strings.Fields(text)
		if len(words) < 3 {
			continue
		}
		line := make([]types.UID, 0, len(words)-1)
		for _, word := range words[1:] {
			line = append(line, types.UID(word))
		}
		successions[words[0]] = append(successions[words[0]], line)
	}
	return successions
}

// Same reports whether two uids are of one namespace, or in one line of its name. An empty uid is in no line.
func (s Successions) Same(namespace string, a, b types.UID) bool {
	if a == "" || b == "" {
		return a == b
	}
	return a == b || slices.ContainsFunc(s[namespace], func(line []types.UID) bool {
		return slices.Contains(line, a) && slices.Contains(line, b)
	})
}

func (s Successions) add(of Succession) bool {
	if s.Same(of.Namespace, of.Former, of.UID) {
		return false
	}
	for i, line := range s[of.Namespace] {
		if slices.Contains(line, of.Former) {
			s[of.Namespace][i] = append(line, of.UID)
			return true
		}
	}
	s[of.Namespace] = append(s[of.Namespace], []types.UID{of.Former, of.UID})
	return true
}

// Succeed writes successions into the ConfigMap, or none if not all fit, and reports a change.
func Succeed(into *corev1.ConfigMap, of ...Succession) (changed bool, err error) {
	successions := SuccessionsOf(into)
	for _, one := range of {
		if one.Former == "" || one.UID == "" {
			return false, fmt.Errorf("the namespace %s: a succession has two uids", one.Namespace)
		}
		if successions.add(one) {
			changed = true
		}
	}
	if !changed {
		return false, nil
	}
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(successions)) {
		for _, line := range successions[name] {
			text.WriteString(name)
			for _, uid := range line {
				text.WriteString(" " + string(uid))
			}
			text.WriteString("\n")
		}
	}
	if text.Len() > maxSuccessionBytes {
		return false, fmt.Errorf("the ConfigMap %s has no room for more namespaces in %s: remove lines of namespaces that have no older backups any more", Name, SuccessionsKey)
	}
	if into.Data == nil {
		into.Data = map[string]string{}
	}
	into.Data[SuccessionsKey] = text.String()
	return true, nil
}
