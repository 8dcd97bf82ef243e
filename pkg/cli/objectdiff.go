// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
)

// objectDiff compares one object in two backups, or in a backup and the cluster.
type objectDiff struct {
	live, clusterScoped, status bool
	objectNamespace             string
}

func (d *objectDiff) addTo(flags *pflag.FlagSet) {
	flags.BoolVar(&d.live, "live", false, "Compare with the object in the cluster: diff BACKUP KIND/NAME --live.")
	flags.BoolVar(&d.status, "status", false, "Compare the status of the object too.")
	flags.StringVar(&d.objectNamespace, "object-namespace", "", "Namespace of the object. Default: the namespace of the backups.")
	flags.BoolVar(&d.clusterScoped, "cluster-scoped", false, "The object is in no namespace.")
}

// split returns the names of the backups, and the object, which may be empty.
func (d *objectDiff) split(args []string) (names []string, object string, err error) {
	if len(args) > 0 && strings.Contains(args[len(args)-1], "/") {
		names, object = args[:len(args)-1], args[len(args)-1]
	} else {
		names = args
	}
	want := 2
	if d.live {
		want = 1
	}
	switch {
	case d.live && object == "":
		return nil, "", usage("--live compares one object: add KIND/NAME")
	case len(names) != want:
		return nil, "", usage("got %d names of backups, want %d", len(names), want)
	}
	return names, object, nil
}

func (d *objectDiff) run(ctx context.Context, t *tool, names []string, object string) error {
	kind, name, _ := strings.Cut(object, "/")
	if kind == "" || name == "" || strings.Contains(name, "/") {
		return usage("%q: want KIND/NAME, such as deployment/web", object)
	}
	_, namespace, err := t.client()
	if err != nil {
		return err
	}
	if d.objectNamespace != "" {
		namespace = d.objectNamespace
	}
	if d.clusterScoped {
		namespace = ""
	}
	read := func(backup string) (*unstructured.Unstructured, error) {
		var content bytes.Buffer
		if err := t.stream(ctx, backups, backup, "objects", map[string]string{"kind": kind, "namespace": namespace, "name": name}, &content); err != nil {
			return nil, err
		}
		o := &unstructured.Unstructured{}
		if err := o.UnmarshalJSON(content.Bytes()); err != nil {
			return nil, fmt.Errorf("the object %s of the backup %s can't be read: %w", object, backup, err)
		}
		return o, nil
	}
	before, err := read(names[0])
	if err != nil {
		return err
	}
	var after *unstructured.Unstructured
	if d.live {
		after, err = t.liveObject(ctx, before)
	} else {
		after, err = read(names[1])
	}
	if err != nil {
		return err
	}
	if !printDifferences(t.Out, before, after, d.status) {
		fmt.Fprintln(t.ErrOut, "The object is the same in both.")
	}
	return nil
}

// liveObject returns the cluster's object of a backup's object, in the same version if it is served, else in the
// preferred one.
func (t *tool) liveObject(ctx context.Context, stored *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	config, err := t.flags.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	mapper, err := t.flags.ToRESTMapper()
	if err != nil {
		return nil, err
	}
	gvk := stored.GroupVersionKind()
	mapping, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		if mapping, err = mapper.RESTMapping(gvk.GroupKind()); err != nil {
			return nil, err
		}
		fmt.Fprintf(t.ErrOut, "The cluster does not serve %s: its object is in version %s.\n", gvk.GroupVersion(), mapping.GroupVersionKind.Version)
	}
	return client.Resource(mapping.Resource).Namespace(stored.GetNamespace()).Get(ctx, stored.GetName(), metav1.GetOptions{})
}

// volatile are fields that differ between any two versions.
var volatile = [][]string{{"metadata", "managedFields"}, {"metadata", "resourceVersion"}, {"metadata", "generation"}}

// printDifferences prints each field that differs, by its path, and reports whether there are any. It prints no
// value of a Secret.
func printDifferences(to io.Writer, before, after *unstructured.Unstructured, status bool) bool {
	a, b := before.DeepCopy().Object, after.DeepCopy().Object
	for _, o := range []map[string]any{a, b} {
		for _, path := range volatile {
			unstructured.RemoveNestedField(o, path...)
		}
		if !status {
			delete(o, "status")
		}
	}
	d := &differences{to: to, secret: before.GetKind() == "Secret" || after.GetKind() == "Secret"}
	d.fields("", a, b)
	return d.any
}

type differences struct {
	to     io.Writer
	secret bool
	any    bool
}

const masked = "(masked)"

// isSecret reports whether a field has a Secret's values, or perhaps copies.
func (d *differences) isSecret(path string) bool {
	if !d.secret {
		return false
	}
	for _, of := range []string{"data", "stringData", "metadata.annotations"} {
		if path == of || strings.HasPrefix(path, of+".") || strings.HasPrefix(path, of+"[") {
			return true
		}
	}
	return false
}

func (d *differences) value(path string, value any) string {
	if d.isSecret(path) {
		return masked
	}
	encoded, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprint(value)
	}
	return string(encoded)
}

func (d *differences) fields(path string, a, b map[string]any) {
	keys := slices.Collect(maps.Keys(a))
	for key := range b {
		if _, both := a[key]; !both {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	for _, key := range keys {
		at := path + "[" + key + "]"
		if !strings.ContainsAny(key, "./[]= ") {
			at = strings.TrimPrefix(path+"."+key, ".")
		}
		old, was := a[key]
		now, is := b[key]
		d.compare(at, old, was, now, is)
	}
}

func (d *differences) compare(path string, old any, was bool, now any, is bool) {
	switch {
	case was && is && reflect.DeepEqual(old, now):
		return
	case was && is:
		oldFields, both := old.(map[string]any)
		nowFields, fields := now.(map[string]any)
		if both && fields {
			d.fields(path, oldFields, nowFields)
			return
		}
		oldList, both := old.([]any)
		nowList, lists := now.([]any)
		if both && lists {
			d.list(path, oldList, nowList)
			return
		}
	}
	// Print the keys of a map that is all of a Secret's values.
	if fields, ok := old.(map[string]any); ok && !is && d.isSecret(path) && len(fields) > 0 {
		d.fields(path, fields, nil)
		return
	}
	if fields, ok := now.(map[string]any); ok && !was && d.isSecret(path) && len(fields) > 0 {
		d.fields(path, nil, fields)
		return
	}
	d.any = true
	switch {
	case !was:
		fmt.Fprintf(d.to, "+ %s: %s\n", path, d.value(path, now))
	case !is:
		fmt.Fprintf(d.to, "- %s: %s\n", path, d.value(path, old))
	default:
		fmt.Fprintf(d.to, "~ %s: %s -> %s\n", path, d.value(path, old), d.value(path, now))
	}
}

// list compares elements by name, else by index.
func (d *differences) list(path string, a, b []any) {
	old, names := named(a)
	now, more := named(b)
	if old == nil || now == nil {
		for i := range max(len(a), len(b)) {
			var was, is any
			if i < len(a) {
				was = a[i]
			}
			if i < len(b) {
				is = b[i]
			}
			d.compare(fmt.Sprintf("%s[%d]", path, i), was, i < len(a), is, i < len(b))
		}
		return
	}
	for _, name := range more {
		if _, both := old[name]; !both {
			names = append(names, name)
		}
	}
	changed := d.any
	d.any = false
	for _, name := range names {
		was, before := old[name]
		is, after := now[name]
		d.compare(path+"[name="+name+"]", was, before, is, after)
	}
	if !d.any { // equal elements in another order
		_, before := named(a)
		_, after := named(b)
		d.any = true
		fmt.Fprintf(d.to, "~ %s: order %s -> %s\n", path, d.value(path, before), d.value(path, after))
	}
	d.any = d.any || changed
}

// named returns the elements by their unique names, and the names in order; nothing without such names.
func named(list []any) (elements map[string]any, names []string) {
	elements = map[string]any{}
	for _, element := range list {
		fields, _ := element.(map[string]any)
		name, _ := fields["name"].(string)
		if name == "" || elements[name] != nil {
			return nil, nil
		}
		elements[name] = element
		names = append(names, name)
	}
	return elements, names
}
