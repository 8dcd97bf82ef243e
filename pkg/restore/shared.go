// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/pkg/restore/object"
)

// shared returns the desired content of an existing object that serves a mapped namespace from
// outside: the copy must not take it away. single lists the fields that stay for this.
func (e *execution) shared(ctx context.Context, item *manifest.Item, live, desired *unstructured.Unstructured) (wanted *unstructured.Unstructured, single []string, err error) {
	resource := schema.GroupResource{Group: item.APIGroup, Resource: item.Resource}
	if e.target(item.Namespace) != item.Namespace || !e.rules.Names(live, resource) {
		return desired, nil, nil
	}
	content, err := e.Backup.Object(ctx, item)
	if err != nil {
		return nil, nil, err
	}
	unmapped, _, err := e.rules.Unmapped().Desired(ctx, content, resource, e.ownersOf(item))
	if err != nil {
		return nil, nil, err
	}
	unmapped.SetAPIVersion(desired.GetAPIVersion())
	wanted, single = object.Both(unmapped, desired)
	return wanted, single, nil
}

func (e *execution) tellSingle(about subject, single []string) {
	if len(single) > 0 {
		e.report.warn(about, fmt.Sprintf("it is there, and serves the namespace of the backup, at %s: it stays so, and does not serve the one that is restored: create one under another name for that", listed(single)))
	}
}
