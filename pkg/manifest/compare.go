// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"errors"
	"fmt"
	"iter"
)

// Sequence yields items in the order of Compare, each identity once, until an error.
type Sequence = iter.Seq2[*Item, error]

// Sequence yields the manifest's items.
func (m *Manifest) Sequence() Sequence {
	return func(yield func(*Item, error) bool) {
		for item := range m.Items() {
			if !yield(item, nil) {
				return
			}
		}
	}
}

// Pair has one identity's items in two manifests; one may be nil.
type Pair struct{ A, B *Item }

var errOrder = fmt.Errorf("%w: its items are not in order", ErrFormat)

// Join yields both sides' identities in order, in one pass.
func Join(a, b Sequence) iter.Seq2[Pair, error] {
	return func(yield func(Pair, error) bool) {
		nextA, stopA := iter.Pull2(ordered(a))
		defer stopA()
		nextB, stopB := iter.Pull2(ordered(b))
		defer stopB()
		itemA, errA, moreA := nextA()
		itemB, errB, moreB := nextB()
		for moreA || moreB {
			if err := errors.Join(errA, errB); err != nil {
				yield(Pair{}, err)
				return
			}
			order := 0
			switch {
			case !moreA:
				order = 1
			case !moreB:
				order = -1
			default:
				order = Compare(itemA, itemB)
			}
			var pair Pair
			if order <= 0 {
				pair.A = itemA
				itemA, errA, moreA = nextA()
			}
			if order >= 0 {
				pair.B = itemB
				itemB, errB, moreB = nextB()
			}
			if !yield(pair, nil) {
				return
			}
		}
	}
}

func ordered(sequence Sequence) Sequence {
	return func(yield func(*Item, error) bool) {
		var last *Item
		for item, err := range sequence {
			if err == nil && last != nil && Compare(last, item) >= 0 {
				err = errOrder
			}
			if !yield(item, err) || err != nil {
				return
			}
			last = item
		}
	}
}

// Diff yields items that are only in b (added), only in a (removed), or differ in their checksums.
func Diff(a, b Sequence) iter.Seq2[Pair, error] {
	return func(yield func(Pair, error) bool) {
		for pair, err := range Join(a, b) {
			if err == nil && pair.A != nil && pair.B != nil && pair.A.SHA256 == pair.B.SHA256 && pair.A.Size == pair.B.Size {
				continue
			}
			if !yield(pair, err) || err != nil {
				return
			}
		}
	}
}
