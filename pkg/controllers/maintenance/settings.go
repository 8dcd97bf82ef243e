// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	utiljson "sigs.k8s.io/json"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
)

const globalKey = "global"

// settings are the administrator's ConfigMap in Velero's form, with the keys global and
// NAMESPACE-LOCATION-TYPE. A repository's own fields win.
type settings map[string]setting

type setting struct {
	Resources *podResources  `json:"podResources,omitempty"`
	Affinity  []loadAffinity `json:"loadAffinity,omitempty"`
	Keep      *int           `json:"keepLatestMaintenanceJobs,omitempty"`
	// Only in global, as with Velero.
	PriorityClass string            `json:"priorityClassName,omitempty"`
	Labels        map[string]string `json:"podLabels,omitempty"`
	Annotations   map[string]string `json:"podAnnotations,omitempty"`

	parsed *Resources
	terms  []corev1.NodeSelectorTerm
}

type podResources struct {
	CPURequest    string `json:"cpuRequest,omitempty"`
	CPULimit      string `json:"cpuLimit,omitempty"`
	MemoryRequest string `json:"memoryRequest,omitempty"`
	MemoryLimit   string `json:"memoryLimit,omitempty"`
}

// loadAffinity selects nodes. Any of several suffices.
type loadAffinity struct {
	NodeSelector metav1.LabelSelector `json:"nodeSelector"`
}

// update reads a ConfigMap. An invalid key keeps its former value.
func (s settings) update(data map[string]string) (settings, error) {
	after := settings{}
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(data)) {
		read, err := readSetting(data[key])
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", key, err))
			before, known := s[key]
			if !known {
				continue
			}
			read = before
		}
		after[key] = read
	}
	return after, errors.Join(errs...)
}

func readSetting(value string) (read setting, err error) {
	strict, err := utiljson.UnmarshalStrict([]byte(value), &read)
	if err = errors.Join(append(strict, err)...); err != nil {
		return read, err
	}
	var errs []error
	if of := read.Resources; of != nil {
		read.parsed = &Resources{}
		for _, field := range []struct {
			name, value string
			into        *resource.Quantity
		}{
			{"cpuRequest", of.CPURequest, &read.parsed.CPURequest}, {"cpuLimit", of.CPULimit, &read.parsed.CPULimit},
			{"memoryRequest", of.MemoryRequest, &read.parsed.MemoryRequest}, {"memoryLimit", of.MemoryLimit, &read.parsed.MemoryLimit},
		} {
			if *field.into, err = resource.ParseQuantity(cmp.Or(field.value, "0")); err != nil || field.into.Sign() < 0 {
				errs = append(errs, fmt.Errorf("podResources.%s must be a quantity such as 500m or 1Gi, but is %q", field.name, field.value))
			}
		}
		for _, pair := range []struct {
			name           string
			request, limit resource.Quantity
		}{{"cpu", read.parsed.CPURequest, read.parsed.CPULimit}, {"memory", read.parsed.MemoryRequest, read.parsed.MemoryLimit}} {
			if !pair.limit.IsZero() && pair.request.Cmp(pair.limit) > 0 {
				errs = append(errs, fmt.Errorf("podResources: the %s limit must not be below the request", pair.name))
			}
		}
	}
	for i, affinity := range read.Affinity {
		if _, err := metav1.LabelSelectorAsSelector(&affinity.NodeSelector); err != nil {
			errs = append(errs, fmt.Errorf("loadAffinity[%d]: %w", i, err))
			continue
		}
		var term corev1.NodeSelectorTerm
		for _, label := range slices.Sorted(maps.Keys(affinity.NodeSelector.MatchLabels)) {
			term.MatchExpressions = append(term.MatchExpressions, corev1.NodeSelectorRequirement{
				Key: label, Operator: corev1.NodeSelectorOpIn, Values: []string{affinity.NodeSelector.MatchLabels[label]},
			})
		}
		for _, want := range affinity.NodeSelector.MatchExpressions {
			term.MatchExpressions = append(term.MatchExpressions, corev1.NodeSelectorRequirement{
				Key: want.Key, Operator: corev1.NodeSelectorOperator(want.Operator), Values: want.Values,
			})
		}
		if len(term.MatchExpressions) > 0 {
			read.terms = append(read.terms, term)
		}
	}
	if read.Keep != nil && *read.Keep < 0 {
		errs = append(errs, fmt.Errorf("keepLatestMaintenanceJobs must not be negative, but is %d", *read.Keep))
	}
	return read, errors.Join(errs...)
}

func ownKey(record *enginev1alpha1.VolumeRepository) string {
	return record.Spec.VolumeNamespace + "-" + record.Spec.BackupStorageLocation + "-" + enginev1alpha1.RepositoryTypeKopia
}

func (s settings) of(record *enginev1alpha1.VolumeRepository) setting {
	holds := s[globalKey]
	own, has := s[ownKey(record)]
	if !has {
		return holds
	}
	holds.parsed = cmp.Or(own.parsed, holds.parsed)
	holds.Keep = cmp.Or(own.Keep, holds.Keep)
	if own.terms != nil {
		holds.terms = own.terms
	}
	return holds
}

func (s setting) apply(pod *corev1.PodTemplateSpec) {
	if s.terms != nil {
		if pod.Spec.Affinity == nil {
			pod.Spec.Affinity = &corev1.Affinity{}
		}
		pod.Spec.Affinity.NodeAffinity = &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: s.terms}}
	}
	pod.Spec.PriorityClassName = cmp.Or(s.PriorityClass, pod.Spec.PriorityClassName)
	for key, value := range s.Labels {
		if _, ours := pod.Labels[key]; !ours {
			pod.Labels[key] = value
		}
	}
	pod.Annotations = s.Annotations
}

func (c *Controller) configured(configMap *corev1.ConfigMap) {
	if configMap == nil {
		c.mu.Lock()
		c.settings = nil
		c.mu.Unlock()
		return
	}
	c.mu.Lock()
	after, err := c.settings.update(configMap.Data)
	c.settings = after
	c.mu.Unlock()
	if err != nil {
		problem := strings.ReplaceAll(err.Error(), "\n", "; ")
		klog.Background().Error(nil, "The ConfigMap of the maintenance has mistakes, and its keys that have stay as they were before", "configMap", klog.KObj(configMap), "problem", problem)
		c.Events.Eventf(configMap, nil, corev1.EventTypeWarning, "InvalidMaintenance", "Configure", "What is wrong here has no effect: %s", problem)
	}
}

func (c *Controller) setting(record *enginev1alpha1.VolumeRepository) setting {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.settings.of(record)
}

func (c *Controller) hasOwnSetting(record *enginev1alpha1.VolumeRepository) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, has := c.settings[ownKey(record)]
	return has
}
