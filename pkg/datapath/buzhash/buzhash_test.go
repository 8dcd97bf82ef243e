// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package buzhash

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kopia/kopia/repo/splitter"
	"pgregory.net/rapid"
)

// cuts returns after which bytes of a stream, given in slices of so many bytes in turn, it is
// cut.
func cuts(next func([]byte) int, stream []byte, sizes []int) (at []int) {
	done := 0
	for turn := 0; done < len(stream); turn++ {
		b := stream[done:min(done+sizes[turn%len(sizes)], len(stream))]
		for {
			n := next(b)
			if n < 0 {
				break
			}
			done += n
			at = append(at, done)
			b = b[n:]
		}
		done += len(b)
	}
	return at
}

func random(seed byte, size int) []byte {
	b := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

// streams have every kind of cut: by content, by the most and by the least that a piece has.
var streams = map[string][]byte{
	"random":        random(1, 40<<20),
	"zeros":         make([]byte, 10<<20), // the hash of what repeats after 32 bytes is 0
	"never":         slices.Repeat([]byte{1, 2, 3}, 7<<20),
	"random, zeros": slices.Concat(random(2, 5<<20), make([]byte, 5<<20), random(3, 7<<20)),
	"short":         random(4, 100),
}

// However a stream comes, it is cut where Kopia cuts it.
func TestAsKopia(t *testing.T) {
	want := map[string][]int{}
	for name, stream := range streams {
		kopia := splitter.GetFactory(Name)()
		want[name] = cuts(kopia.NextSplitPoint, stream, []int{64 << 10})
		if name == "random" && len(want[name]) < 5 || kopia.MaxSegmentSize() != Most {
			t.Errorf("%s: %d cuts, %d bytes at the most", name, len(want[name]), kopia.MaxSegmentSize())
		}
	}
	names := slices.Sorted(maps.Keys(streams))
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.SampledFrom(names).Draw(t, "stream")
		sizes := rapid.SliceOfN(rapid.OneOf(
			rapid.IntRange(1, 3*window),
			rapid.SampledFrom([]int{64 << 10, 2*stretch + window, 4 * stretch, 128 << 10, least, Most}),
			rapid.IntRange(1, 12<<20),
		), 1, 20).Draw(t, "sizes")
		sizes = append(sizes, 1<<20) // else tiny ones alone take long
		var s Splitter
		if got := cuts(s.NextSplitPoint, streams[name], sizes); !slices.Equal(got, want[name]) {
			t.Errorf("%s: cut at %v, by Kopia at %v", name, got, want[name])
		}
	})
}

// A hash that comes at any place around the ends of slices and stretches is found.
func TestEachPlace(t *testing.T) {
	const start = least - 3*window
	never := slices.Repeat([]byte{1, 2, 3}, least/3+2*stretch)
	stream := slices.Clone(never)
	for at := least - 2*window; at < len(stream); at++ {
		if near := (at - least + 1) % stretch; at > least+2*window && near > 2*window && near < stretch-2*window {
			continue
		}
		copy(stream[at-window+1:at+1], make([]byte, window))
		var s Splitter
		want := max(at+1, least)
		if at < least-1 {
			want = -1
		}
		if got := slices.Concat(cuts(s.NextSplitPoint, stream, []int{start, 4*stretch + window}), []int{-1})[0]; got != want {
			t.Fatalf("zeros end at %d: cut after %d", at, got)
		}
		copy(stream[at-window+1:at+1], never[at-window+1:])
	}
}

func BenchmarkSplitter(b *testing.B) {
	stream := streams["random"]
	for name, begin := range map[string]func() func([]byte) int{
		"kopia": func() func([]byte) int { return splitter.GetFactory(Name)().NextSplitPoint },
		"ours":  func() func([]byte) int { return new(Splitter).NextSplitPoint },
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(stream)))
			for b.Loop() {
				cuts(begin(), stream, []int{64 << 10})
			}
		})
	}
}
