// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package clustercache

import "k8s.io/client-go/tools/cache"

// Handler passes each version of an object to changed, and a deleted object's last known version to deleted.
func Handler[T any](changed, deleted func(T)) cache.ResourceEventHandlerFuncs {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { changed(obj.(T)) },
		UpdateFunc: func(_, obj any) { changed(obj.(T)) },
		DeleteFunc: func(obj any) {
			if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = tombstone.Obj
			}
			if object, ok := obj.(T); ok {
				deleted(object)
			}
		},
	}
}
