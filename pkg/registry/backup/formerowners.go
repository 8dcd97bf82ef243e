// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/stored"
)

// A right in a namespace gives no right to the contents of an earlier namespace of its name. A reader in a
// namespace reads contents of that very namespace, and of one that it continues. Contents of a cluster that
// its location trusts with the namespace are read too.

// Judge returns whether objects with these claims are listed in the namespace that they name. See catalog.Judge.
type Judge func(location string, claims *v1alpha1.BackupOrigin) (origin v1alpha1.BackupOrigin, home bool)

// predecessors tells a backup's namespaces from present ones of their names.
type predecessors struct {
	judge    Judge
	backup   *v1alpha1.Backup
	location string
	from     stored.Backup
	index    *manifest.Index      // of the manifest; read if nil
	uids     map[string]types.UID // of the backup's namespaces, by name; nil until they are read
}

// isPresent reports whether a backup's namespace is the present one of its name.
func (p *predecessors) isPresent(ctx context.Context, namespace string) (bool, error) {
	origin := p.backup.Status.Origin
	if origin == nil || origin.Trust != v1alpha1.BackupTrustOwn && origin.Trust != v1alpha1.BackupTrustTrusted {
		return false, nil // its claims are not vouched for
	}
	if p.uids == nil {
		uids, err := namespacesOf(ctx, p.from, p.index)
		if err != nil {
			return false, fmt.Errorf("find out which namespaces the backup holds: %w", err)
		}
		p.uids = uids
	}
	claims := *origin
	claims.Trust, claims.Message = "", ""
	claims.Namespace, claims.NamespaceUID = namespace, p.uids[namespace]
	_, home := p.judge(p.location, &claims)
	return home, nil
}

// namespacesOf returns the uids of a backup's namespaces, by name. It reads a nil index.
func namespacesOf(ctx context.Context, from stored.Backup, index *manifest.Index) (map[string]types.UID, error) {
	const kind = "v1/Namespace"
	uids := map[string]types.UID{}
	take := func(item *manifest.Item) {
		if item.GroupKind() == kind {
			uids[item.Name] = types.UID(item.UID)
		}
	}
	var err error
	if index == nil {
		index, err = from.Index(ctx)
	}
	if errors.Is(err, store.ErrNotFound) {
		for object, err := range from.Scan(ctx) {
			if err != nil {
				return nil, err
			}
			take(object.Item)
		}
		return uids, nil
	}
	if err != nil {
		return nil, err
	}
	for item, err := range index.Read(ctx, kind) {
		if err != nil {
			return nil, err
		}
		take(item)
	}
	return uids, nil
}

func (r *reader) mayReadAll(ctx context.Context) (bool, error) {
	return r.mayReadIn(ctx, metav1.NamespaceAll)
}

// mayReadOf reports whether the reader may know a namespace's contents as it was then.
func (r *reader) mayReadOf(ctx context.Context, namespace string) (bool, error) {
	if may, err := r.mayReadIn(ctx, namespace); err != nil || !may || namespace == r.own || namespace == "" {
		return may, err
	}
	if all, err := r.mayReadAll(ctx); err != nil || all {
		return all, err
	}
	present, known := r.present[namespace]
	if !known {
		var err error
		if present, err = r.former.isPresent(ctx, namespace); err != nil {
			return false, err
		}
		r.present[namespace] = present
	}
	return present, nil
}
