// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"errors"
	"fmt"
	"math/bits"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Pattern is a word of a namespace list: a name, or a glob of path.Match's syntax without escapes and
// negation.
//
// Invariants of ParsePattern:
//
//  1. Each element is a non-empty set of characters, or anyRun; no two anyRun are neighbours.
//  2. At least one valid namespace name matches.
type Pattern struct {
	text  string
	elems []element
	// prefix and suffix are the literals around all wildcards. They decide most questions.
	prefix, suffix string
	wildcards      int
}

type element uint64

const (
	anyRun  element = 0 // `*`; no set is empty, so the value is free
	hyphen  element = 1 << 36
	alnum   element = hyphen - 1
	anyChar element = alnum | hyphen

	maxName = validation.DNS1123LabelMaxLength
)

func char(c byte) element {
	switch {
	case 'a' <= c && c <= 'z':
		return 1 << (c - 'a')
	case '0' <= c && c <= '9':
		return 1 << (26 + c - '0')
	case c == '-':
		return hyphen
	}
	return 0
}

// ParsePattern refuses the empty word, `**`, bad brackets, characters that no namespace has, and
// patterns without a valid name. The error omits the word.
func ParsePattern(word string) (Pattern, error) {
	p := Pattern{text: word, prefix: word, suffix: word}
	if word == "" {
		return Pattern{}, errors.New("is empty: give a namespace or a pattern")
	}
	if !isGlob(word) {
		if problems := validation.IsDNS1123Label(word); len(problems) > 0 {
			return Pattern{}, fmt.Errorf("can't be a namespace: %s", strings.Join(problems, "; "))
		}
	} else {
		p.prefix, p.suffix = word[:strings.IndexAny(word, wildcards)], word[strings.LastIndexAny(word, wildcards)+1:]
	}
	chars := 0
	for rest := word; rest != ""; {
		e, width, err := parseElement(rest)
		if err != nil {
			return Pattern{}, err
		}
		if strings.ContainsRune(wildcards, rune(rest[0])) {
			p.wildcards++
		}
		rest = rest[width:]
		if e != anyRun {
			// Before the search below, to bound its cost.
			if chars++; chars > maxName {
				return Pattern{}, fmt.Errorf("matches no namespace: names have at most %d characters", maxName)
			}
		}
		p.elems = append(p.elems, e)
	}
	if isGlob(word) && !intersect(p.elems, []element{anyRun}) {
		return Pattern{}, errors.New("matches no namespace: names start and end with a letter or a digit")
	}
	return p, nil
}

func isGlob(word string) bool { return strings.ContainsAny(word, wildcards) }

const wildcards = "*?[]"

func parseElement(s string) (element, int, error) {
	switch s[0] {
	case '*':
		if strings.HasPrefix(s, "**") {
			return 0, 0, errors.New("has `**`: one `*` already stands for any characters")
		}
		return anyRun, 1, nil
	case '?':
		return anyChar, 1, nil
	case '[':
		return parseBrackets(s)
	case ']':
		return 0, 0, errors.New("has a `]` without a `[` before it")
	}
	e, err := parseChar(s)
	return e, 1, err
}

// parseBrackets reads `[...]`. A hyphen only separates a range, as in path.Match.
func parseBrackets(s string) (element, int, error) {
	var set element
	i := 1
	for ; i < len(s) && s[i] != ']'; i++ {
		low, err := parseChar(s[i:])
		if err != nil {
			return 0, 0, err
		}
		if low == hyphen {
			return 0, 0, errors.New("has a `-` in brackets that is not between two characters")
		}
		set |= low
		if i+1 >= len(s) || s[i+1] != '-' {
			continue
		}
		if i+2 >= len(s) || s[i+2] == ']' {
			return 0, 0, errors.New("has a range without an end in brackets")
		}
		high, err := parseChar(s[i+2:])
		if err != nil {
			return 0, 0, err
		}
		if high == hyphen || s[i+2] < s[i] {
			return 0, 0, fmt.Errorf("has a range that runs backwards, %q: turn it round", s[i:i+3])
		}
		for c := s[i]; c <= s[i+2]; c++ {
			set |= char(c)
		}
		i += 2
	}
	if i >= len(s) {
		return 0, 0, errors.New("has a `[` that is not closed")
	}
	if set == 0 {
		return 0, 0, errors.New("has empty brackets")
	}
	return set, i + 1, nil
}

func parseChar(s string) (element, error) {
	if e := char(s[0]); e != 0 {
		return e, nil
	}
	for _, r := range s {
		return 0, fmt.Errorf("has %q, which no namespace name holds: use lower-case letters, digits and `-`, with `*`, `?` and `[...]`", r)
	}
	return 0, nil
}

// String returns the word as written.
func (p Pattern) String() string { return p.text }

// Match reports whether the name matches. An invalid name matches nothing.
func (p Pattern) Match(name string) bool {
	if len(name) == 0 || len(name) > maxName || !strings.HasPrefix(name, p.prefix) || !strings.HasSuffix(name, p.suffix) {
		return false
	}
	var buf [maxName]element
	for i := range len(name) {
		if buf[i] = char(name[i]); buf[i] == 0 {
			return false
		}
	}
	return covers(p.elems, buf[:len(name)])
}

// Covers reports whether p matches every name of q. It compares by element, so it may wrongly say no
// (`?*` and `*`), never yes.
func (p Pattern) Covers(q Pattern) bool { return covers(p.elems, q.elems) }

// only returns the only name of a pattern of brackets around single characters, or "".
func (p Pattern) only() string {
	if strings.ContainsAny(p.text, "*?") {
		return ""
	}
	name := make([]byte, 0, len(p.elems))
	for _, e := range p.elems {
		at := bits.TrailingZeros64(uint64(e))
		if e != 1<<at {
			return ""
		}
		name = append(name, "abcdefghijklmnopqrstuvwxyz0123456789-"[at])
	}
	return string(name)
}

// covers is glob matching with q's elements as characters: a set takes its subsets, a run anything.
// Extending only the last run after a mismatch suffices.
func covers(p, q []element) bool {
	i, j := 0, 0
	run, resume := -1, 0
	for j < len(q) {
		switch {
		case i < len(p) && p[i] == anyRun:
			run, resume = i, j
			i++
		case i < len(p) && q[j] != anyRun && q[j]&^p[i] == 0:
			i++
			j++
		case run >= 0:
			resume++
			i, j = run+1, resume
		default:
			return false
		}
	}
	for i < len(p) && p[i] == anyRun {
		i++
	}
	return i == len(p)
}

// Intersects reports exactly whether a valid name matches both patterns.
func (p Pattern) Intersects(q Pattern) bool {
	n, m := min(len(p.prefix), len(q.prefix)), min(len(p.suffix), len(q.suffix))
	if p.prefix[:n] != q.prefix[:n] || p.suffix[len(p.suffix)-m:] != q.suffix[len(q.suffix)-m:] {
		return false
	}
	if p.isOneRun() && q.isOneRun() && max(len(p.prefix), len(q.prefix))+1+max(len(p.suffix), len(q.suffix)) <= maxName {
		return true // the longer of each, with a letter between
	}
	return intersect(p.elems, q.elems)
}

func (p *Pattern) isOneRun() bool {
	return p.wildcards == 1 && len(p.prefix)+len(p.suffix)+1 == len(p.elems) && p.elems[len(p.prefix)] == anyRun
}

// The last character in the search of intersect: a name neither begins nor ends with a hyphen.
const (
	atStart = iota
	afterAlnum
	afterHyphen
	nLast
)

// intersect walks the product of the patterns' and a DNS label's automata, breadth first by length, at
// most 3·len(p)·len(q) states. Each is visited at its shortest length, so the length limit is exact.
func intersect(p, q []element) bool {
	type state struct{ i, j, last int }
	seen := make([]bool, (len(p)+1)*(len(q)+1)*nLast)
	var layer, next []state
	// add adds s and the states reachable by ending a run.
	var add func(to *[]state, s state)
	add = func(to *[]state, s state) {
		at := (s.i*(len(q)+1)+s.j)*nLast + s.last
		if seen[at] {
			return
		}
		seen[at] = true
		*to = append(*to, s)
		if s.i < len(p) && p[s.i] == anyRun {
			add(to, state{s.i + 1, s.j, s.last})
		}
		if s.j < len(q) && q[s.j] == anyRun {
			add(to, state{s.i, s.j + 1, s.last})
		}
	}
	add(&layer, state{0, 0, atStart})
	for length := 0; len(layer) > 0 && length <= maxName; length++ {
		next = next[:0]
		for _, s := range layer {
			if s.i == len(p) && s.j == len(q) && s.last == afterAlnum {
				return true
			}
			if s.i == len(p) || s.j == len(q) {
				continue
			}
			pc, pi := step(p, s.i)
			qc, qj := step(q, s.j)
			both := pc & qc
			if both&alnum != 0 {
				add(&next, state{pi, qj, afterAlnum})
			}
			if both&hyphen != 0 && s.last != atStart {
				add(&next, state{pi, qj, afterHyphen})
			}
		}
		layer, next = next, layer
	}
	return false
}

func step(p []element, i int) (element, int) {
	if p[i] == anyRun {
		return anyChar, i
	}
	return p[i], i + 1
}
