// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"bytes"
	"encoding/json"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/selection"
)

const (
	maxResourceHooks = 16
	// maxHooks limits hooks of one kind for the same pods.
	maxHooks     = 16
	maxHookWords = 100
	// MaxHookTimeout is a hook's longest time limit.
	MaxHookTimeout = 4 * time.Hour
)

// validateHooksLimits also returns the size.
func validateHooksLimits(hooks *v1alpha1.BackupHooks, at *field.Path) (field.ErrorList, int) {
	at = at.Child("resources")
	errs := atMost(len(hooks.Resources), maxResourceHooks, at)
	size := 0
	for i := range hooks.Resources {
		of, at := &hooks.Resources[i], at.Index(i)
		words := hookWords{of.Name, of.IncludedNamespaces, of.ExcludedNamespaces, of.IncludedResources, of.ExcludedResources, of.LabelSelector}
		more, n := words.validateLimits(at)
		errs, size = append(errs, more...), size+n
		for name, list := range map[string][]v1alpha1.BackupResourceHook{"pre": of.Pre, "post": of.Post} {
			errs = append(errs, atMost(len(list), maxHooks, at.Child(name))...)
			for j := range list {
				if exec := list[j].Exec; exec != nil {
					more, n := validateCommandLimits(exec.Command, at.Child(name).Index(j).Child("exec", "command"))
					errs, size = append(errs, more...), size+n+len(exec.Container)+len(exec.OnError)
				}
			}
		}
	}
	return errs, size
}

func validateCommandLimits(command []string, at *field.Path) (errs field.ErrorList, size int) {
	for _, word := range command {
		size += len(word)
	}
	return atMost(len(command), maxHookWords, at), size
}

// hookWords say which pods an entry is for.
type hookWords struct {
	name                                   string
	includedNamespaces, excludedNamespaces []string
	includedResources, excludedResources   []string
	labelSelector                          *metav1.LabelSelector
}

func (w *hookWords) validateLimits(at *field.Path) (errs field.ErrorList, size int) {
	size = len(w.name)
	for name, list := range map[string][]string{
		"includedNamespaces": w.includedNamespaces,
		"excludedNamespaces": w.excludedNamespaces,
		"includedResources":  w.includedResources,
		"excludedResources":  w.excludedResources,
	} {
		errs = append(errs, atMost(len(list), maxHookWords, at.Child(name))...)
		errs = append(errs, selection.CheckList(list, at.Child(name))...)
		for _, word := range list {
			size += len(word)
		}
	}
	if w.labelSelector != nil {
		more, n := validateSelectorLimits(w.labelSelector, at.Child("labelSelector"))
		errs, size = append(errs, more...), size+n
	}
	return errs, size
}

func (w *hookWords) validate(at *field.Path) field.ErrorList {
	namespaces, errs := selection.ParseNamespaces(w.includedNamespaces, w.excludedNamespaces, at)
	_, more := selection.ParseResources(selection.ResourceLists{IncludedResources: w.includedResources, ExcludedResources: w.excludedResources}, namespaces, at)
	errs = append(errs, more...)
	if w.name == "" {
		errs = append(errs, field.Required(at.Child("name"), "the log and the results name the hook by it"))
	}
	if w.labelSelector != nil {
		errs = append(errs, validateSelector(w.labelSelector, at.Child("labelSelector"))...)
	}
	return errs
}

func validateHooks(hooks *v1alpha1.BackupHooks, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range hooks.Resources {
		of, at := &hooks.Resources[i], at.Child("resources").Index(i)
		words := hookWords{of.Name, of.IncludedNamespaces, of.ExcludedNamespaces, of.IncludedResources, of.ExcludedResources, of.LabelSelector}
		errs = append(errs, words.validate(at)...)
		if len(of.Pre)+len(of.Post) == 0 {
			errs = append(errs, field.Required(at, "give pre, post, or both"))
		}
		for j := range of.Pre {
			errs = append(errs, validateHook(&of.Pre[j], at.Child("pre").Index(j))...)
		}
		for j := range of.Post {
			errs = append(errs, validateHook(&of.Post[j], at.Child("post").Index(j))...)
		}
	}
	return errs
}

func validateHook(hook *v1alpha1.BackupResourceHook, at *field.Path) field.ErrorList {
	at = at.Child("exec")
	exec := hook.Exec
	if exec == nil {
		return field.ErrorList{field.Required(at, "a hook is a command to run in a container")}
	}
	errs := validateCommand(exec.Command, exec.OnError, at)
	return append(errs, validateHookTimeout(exec.Timeout.Duration, at.Child("timeout"), "30s")...)
}

func validateCommand(command []string, onError v1alpha1.HookErrorMode, at *field.Path) (errs field.ErrorList) {
	if len(command) == 0 || command[0] == "" {
		errs = append(errs, field.Required(at.Child("command"), "give the command and its arguments as a list"))
	}
	return append(errs, oneOf(onError, at.Child("onError"), v1alpha1.HookErrorModeContinue, v1alpha1.HookErrorModeFail)...)
}

func validateHookTimeout(timeout time.Duration, at *field.Path, standard string) field.ErrorList {
	if timeout < 0 || timeout > MaxHookTimeout {
		return field.ErrorList{field.Invalid(at, timeout.String(), "must be between 0s, for the default of "+standard+", and "+MaxHookTimeout.String())}
	}
	return nil
}

// validateRestoreHooksLimits also returns the size.
func validateRestoreHooksLimits(hooks *v1alpha1.RestoreHooks, at *field.Path) (field.ErrorList, int) {
	at = at.Child("resources")
	errs := atMost(len(hooks.Resources), maxResourceHooks, at)
	size := 0
	for i := range hooks.Resources {
		of, at := &hooks.Resources[i], at.Index(i)
		words := hookWords{of.Name, of.IncludedNamespaces, of.ExcludedNamespaces, of.IncludedResources, of.ExcludedResources, of.LabelSelector}
		more, n := words.validateLimits(at)
		errs, size = append(errs, more...), size+n
		at = at.Child("postHooks")
		errs = append(errs, atMost(len(of.PostHooks), maxHooks, at)...)
		for j, hook := range of.PostHooks {
			if exec := hook.Exec; exec != nil {
				more, n := validateCommandLimits(exec.Command, at.Index(j).Child("exec", "command"))
				errs, size = append(errs, more...), size+n+len(exec.Container)+len(exec.OnError)
			}
			if init := hook.Init; init != nil {
				errs = append(errs, atMost(len(init.InitContainers), maxHooks, at.Index(j).Child("init", "initContainers"))...)
				for _, container := range init.InitContainers {
					size += len(container.Raw)
				}
			}
		}
	}
	return errs, size
}

func validateRestoreHooks(hooks *v1alpha1.RestoreHooks, at *field.Path) (errs field.ErrorList) {
	for i := range hooks.Resources {
		of, at := &hooks.Resources[i], at.Child("resources").Index(i)
		words := hookWords{of.Name, of.IncludedNamespaces, of.ExcludedNamespaces, of.IncludedResources, of.ExcludedResources, of.LabelSelector}
		errs = append(errs, words.validate(at)...)
		if at = at.Child("postHooks"); len(of.PostHooks) == 0 {
			errs = append(errs, field.Required(at, "give exec or init hooks"))
		}
		for j, hook := range of.PostHooks {
			at := at.Index(j)
			switch {
			case (hook.Exec == nil) == (hook.Init == nil):
				errs = append(errs, field.Invalid(at, "", "a hook is either exec, a command to run in a container, or init, containers that the pod gets"))
			case hook.Exec != nil:
				at := at.Child("exec")
				errs = append(errs, validateCommand(hook.Exec.Command, hook.Exec.OnError, at)...)
				errs = append(errs, validateHookTimeout(hook.Exec.ExecTimeout.Duration, at.Child("execTimeout"), "30s")...)
				errs = append(errs, validateHookTimeout(hook.Exec.WaitTimeout.Duration, at.Child("waitTimeout"), "10m")...)
			default:
				errs = append(errs, validateInitContainers(hook.Init.InitContainers, at.Child("init", "initContainers"))...)
			}
		}
	}
	return errs
}

func validateInitContainers(containers []runtime.RawExtension, at *field.Path) (errs field.ErrorList) {
	if len(containers) == 0 {
		errs = append(errs, field.Required(at, "give the containers as in the spec of a pod"))
	}
	for i, raw := range containers {
		var container corev1.Container
		decoder := json.NewDecoder(bytes.NewReader(raw.Raw))
		decoder.DisallowUnknownFields()
		switch err := decoder.Decode(&container); {
		case err != nil:
			errs = append(errs, field.Invalid(at.Index(i), "", "is no container: "+err.Error()))
		case container.Name == "":
			errs = append(errs, field.Required(at.Index(i).Child("name"), "a container has a name"))
		}
	}
	return errs
}
