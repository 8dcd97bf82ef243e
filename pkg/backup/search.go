// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
)

// manyGets is the least number of objects for which one list is read.
const manyGets = 10

var (
	errFound   = errors.New("all are found")
	errTooLong = errors.New("most of it is other objects")
)

// worthAGet is how many further objects of a list are read for each missing one. A page costs the
// server as much as a few dozen single reads.
const worthAGet = 50

// search visits a list with needed objects, and reports whether it saw all or nothing is missing. An
// error is for the whole backup.
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
			unread = true
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
