// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"math/rand/v2"

	"golang.org/x/sync/errgroup"
)

// each calls do for 0 to n-1, several at once, and returns the first error.
func each(ctx context.Context, n int, do func(context.Context, int) error) error {
	return eachOf(ctx, parallel, n, do)
}

func eachOf(ctx context.Context, atOnce, n int, do func(context.Context, int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for i := range n {
		group.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return do(ctx, i)
		})
	}
	return group.Wait()
}

// randomness gives the same bytes for the same seed, in every run.
func randomness(seed uint64) *rand.ChaCha8 {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	return rand.NewChaCha8(key)
}

// text is random text of a size, so that it does not compress away.
func text(size int, seed uint64) string {
	raw := make([]byte, size)
	randomness(seed).Read(raw)
	return base64.StdEncoding.EncodeToString(raw)[:size]
}
