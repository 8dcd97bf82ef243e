// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/pkg/restore/object"
)

// compare decides about an existing object. If it has more fields than desired, a dry run tells
// which the server puts back: defaults, or additions of admission. Without an answer, all count as
// added. again says that the object has changed.
func (e *execution) compare(ctx context.Context, k *kind, item *manifest.Item, about subject, live, desired *unstructured.Unstructured) (d object.Decision, again bool, err error) {
	policy, managed, err := e.policyFor(ctx, k, item, live)
	if err != nil {
		return d, false, err
	}
	d = object.CompareNewborn(live, desired, nil, policy, managed)
	if d.Probe == nil {
		return d, false, nil
	}
	served, err := e.writer.patch(ctx, k, about.namespace, about.name, "", d.Probe, true)
	switch {
	case err == nil:
		return object.CompareNewborn(live, desired, served, policy, managed), false, nil
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return d, true, nil
	case ctx.Err() != nil:
		return d, false, ctx.Err()
	}
	e.report.info(about, "what it has besides may be the server's own, which refuses to tell: "+err.Error())
	return d, false, nil
}

func differs(d object.Decision) string {
	text := "it is there, and stays as it is, though it "
	switch {
	case len(d.Differs) == 0:
		text += "has besides: " + listed(d.Besides)
	case len(d.Besides) == 0:
		text += "differs: " + listed(d.Differs)
	default:
		text += "differs: " + listed(d.Differs) + "; it has besides: " + listed(d.Besides)
	}
	if len(d.Kept) > 0 {
		text += "; " + listed(d.Kept)
	}
	return text
}

func changes(d object.Decision) string {
	var parts []string
	if len(d.Differs) > 0 {
		parts = append(parts, listed(d.Differs))
	}
	removed := slices.DeleteFunc(slices.Clone(d.Besides), func(path string) bool {
		return slices.ContainsFunc(d.Kept, func(kept string) bool { return strings.HasPrefix(kept, path+" (") })
	})
	if len(removed) > 0 {
		parts = append(parts, "without "+listed(removed))
	}
	return strings.Join(parts, "; ")
}

func differsIn(d object.Decision) string { return listed(slices.Concat(d.Differs, d.Besides)) }

const maxListed = 10

func listed(fields []string) string {
	if more := len(fields) - maxListed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(fields[:maxListed], ", "), more)
	}
	return strings.Join(fields, ", ")
}
