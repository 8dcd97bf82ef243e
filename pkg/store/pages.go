// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"slices"
)

// errOrder: a listing that goes backwards may lack objects.
var errOrder = errors.New("the store lists names out of their order")

// page is one answer of a listing, in any order, and the next page's token; "" for the last.
type page struct {
	objects []Object
	next    string
}

// listPages yields pages' objects in the order of the keys' bytes, after options.StartAfter. It fails
// if a page goes backwards.
func listPages(folder string, options ListOptions, fetch func(token string) (page, error)) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		last := options.StartAfter
		for token, first := "", true; first || token != ""; first = false {
			got, err := fetch(token)
			if err != nil {
				yield(Object{}, err)
				return
			}
			slices.SortFunc(got.objects, func(a, b Object) int { return cmp.Compare(a.Key, b.Key) })
			for _, object := range got.objects {
				switch {
				case object.Key <= options.StartAfter, object.Key == folder, object.Key == last:
					// Some consoles create an object for the folder, and two pages may have one folder.
					continue
				case object.Key < last:
					yield(Object{}, errOrder)
					return
				}
				last = object.Key
				if !yield(object, nil) {
					return
				}
			}
			token = got.next
		}
	}
}

// changedOrGone asks the store why a removal's condition failed: some services say the same of a
// missing object.
func changedOrGone(ctx context.Context, b backend, key string) error {
	if _, err := b.attributes(ctx, key); errors.Is(explain("", "", err), ErrNotFound) {
		return err
	}
	return ErrChanged
}
