// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package virtual

import (
	"context"
	"fmt"
	"net/http"
	"sort"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"

	"github.com/holdfast-io/holdfast/pkg/registry/logstore"
)

// maxWhole bounds the rows of a table that is answered despite a smaller limit.
const maxWhole = 10_000

type tableKey struct{}

// AsTable marks a request whose answer is a table.
func AsTable(ctx context.Context) context.Context { return context.WithValue(ctx, tableKey{}, true) }

// IsTable reports whether AsTable has marked the request.
func IsTable(ctx context.Context) bool { return ctx.Value(tableKey{}) != nil }

// MarkTables marks the requests for tables. Without it, their lists come in pages, by names.
func MarkTables(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(strings.Join(r.Header.Values("Accept"), ","), "as=Table") {
			r = r.WithContext(AsTable(r.Context()))
		}
		handler.ServeHTTP(w, r)
	})
}

// ordered lists tables in the order of their rows. kubectl asks for pages of 500, and can't order rows of several
// pages. A server may ignore a limit, so a table of up to maxWhole rows is one answer. Longer ones come in pages,
// by names, unless the request has no limit.
type ordered[T logstore.Object] struct {
	rest.Lister
	compare func(a, b T) int
}

// List implements rest.Lister.
func (o *ordered[T]) List(ctx context.Context, options *internalversion.ListOptions) (runtime.Object, error) {
	if !IsTable(ctx) || options == nil || options.Continue != "" {
		return o.Lister.List(ctx, options)
	}
	whole := options.DeepCopy()
	if whole.Limit > 0 {
		whole.Limit = max(whole.Limit, maxWhole)
	}
	list, err := o.Lister.List(ctx, whole)
	if err != nil {
		return nil, err
	}
	found, err := meta.ListAccessor(list)
	if err != nil {
		return nil, err
	}
	if found.GetContinue() != "" {
		warning.AddWarning(ctx, "", fmt.Sprintf("there are more than %d, so they come by their names; kubectl get --chunk-size=0 shows them in their order", maxWhole))
		return o.Lister.List(ctx, options)
	}
	itemsPtr, err := meta.GetItemsPtr(list)
	if err != nil {
		return nil, err
	}
	items, err := conversion.EnforcePtr(itemsPtr)
	if err != nil {
		return nil, err
	}
	at := func(i int) T { return items.Index(i).Addr().Interface().(T) }
	sort.SliceStable(items.Interface(), func(i, j int) bool { return o.compare(at(i), at(j)) < 0 })
	return list, nil
}
