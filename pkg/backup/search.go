// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
)

// manyGets is how many objects are looked for in a list rather than read one by one.
const manyGets = 10

var (
	// errFound ends a search, since nothing is left to be found.
	errFound = errors.New("all are found")
	// errTooLong ends one whose list has far more objects than are looked for.
	errTooLong = errors.New("most of it is other objects")
)

// worthAGet is how many objects to come of a list are read rather than one that is looked for by
// itself: a page has some hundred, and takes the server as long as a few dozen single ones.
const worthAGet = 50

// search visits the objects of a list among which others are that are needed, and says whether
// it has seen all, or as many as are missing. What it misses, since the server fails or the list is
// long, is to be read by itself. The error is for the backup as a whole.
func (c *collector) search(ctx context.Context, q query, missing func() int, visit func(*head, []byte) error) (whole bool, _ error) {
	unread := false
	listCtx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	page := func(remaining int64) {
		if remaining > worthAGet*int64(missing()) {
			stop(errTooLong)
		}
	}
	err := c.lister.list(listCtx, q, visitor{page: page, object: func(raw []byte) error {
		h, err := headOf(raw)
		if err != nil {
			unread = true // if it is needed, that is told when it is read by itself
			return nil
		}
		if err := visit(h, raw); err != nil || missing() > 0 {
			return err
		}
		return errFound
	}})
	if listCtx.Err() != nil {
		err = context.Cause(listCtx)
	}
	var fatal visitError
	switch {
	case ctx.Err() != nil:
		return false, ctx.Err()
	case errors.As(err, &fatal) && errors.Is(fatal.error, errFound):
		return true, nil
	case errors.As(err, &fatal):
		return false, fatal.error
	case err != nil:
		c.log.write(slog.LevelInfo, fmt.Sprintf("what others refer to is read one by one: list it: %v", err), subject{q.resource.GroupResource(), q.namespace, ""}.attrs()...)
	}
	return err == nil && !unread, nil
}
