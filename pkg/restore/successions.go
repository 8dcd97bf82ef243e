// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/identity"
)

const succeedTimeout = 20 * time.Second

// succeed gives a new namespace the history of the backup's of that name. A namespace that another
// is mapped to continues none.
func (e *execution) succeed(ctx context.Context, name string, former, uid types.UID) {
	if e.Succeed == nil || e.spec.PlanOnly || former == "" || former == uid || e.isCopy(name) {
		return
	}
	// The namespace stays when the restore is cancelled.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), succeedTimeout)
	defer cancel()
	about := subject{resource: "namespaces", name: name}
	if err := e.Succeed(ctx, identity.Succession{Namespace: name, Former: former, UID: uid}); err == nil {
		e.report.info(about, fmt.Sprintf("it continues the namespace with the uid %s, whose backups and restores are listed in it from now on", former))
	} else {
		e.report.warn(about, fmt.Sprintf("the backups and restores of the lost namespace are not listed in it, since that could not be recorded: %v: to list them there, name this cluster for it in spec.trustedClusters of their storage locations", err))
	}
}

func (e *execution) isCopy(name string) bool {
	for from, to := range e.spec.NamespaceMapping {
		if to == name && from != name {
			return true
		}
	}
	return false
}

func (e *execution) former(name string) types.UID {
	for _, item := range e.Backup.Items {
		if isNamespace(item) && item.Name == name {
			return types.UID(item.UID)
		}
	}
	if origin := e.Backup.Metadata.Status.Origin; origin != nil && origin.Namespace == name {
		return origin.NamespaceUID
	}
	return ""
}
