// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// scanner reads JSON as it arrives, one value in memory at a time. Its values are valid, so eachField
// checks nothing.
type scanner struct {
	from io.Reader
	// buffer is unread from at to end. If kept is not negative, the current value begins there.
	buffer        []byte
	kept, at, end int
	open          []byte
}

const scanBytes = 8 << 10

// maxOpen bounds the open brackets, as in encoding/json.
const maxOpen = 10_000

func newScanner(from io.Reader) *scanner { return &scanner{from: from, kept: -1} }

// fill reads more bytes, or returns io.ErrUnexpectedEOF.
func (s *scanner) fill() error {
	begin := s.at
	if s.kept >= 0 {
		begin, s.kept = s.kept, 0
	}
	copied := copy(s.buffer, s.buffer[begin:s.end])
	s.at, s.end = s.at-begin, copied
	if len(s.buffer)-s.end < scanBytes/2 {
		s.buffer = append(s.buffer[:s.end], make([]byte, max(scanBytes, s.end))...)
	}
	n, err := io.ReadAtLeast(s.from, s.buffer[s.end:], 1)
	if s.end += n; errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (s *scanner) byte() (byte, error) {
	if s.at == s.end {
		if err := s.fill(); err != nil {
			return 0, err
		}
	}
	s.at++
	return s.buffer[s.at-1], nil
}

func (s *scanner) token() (byte, error) {
	for {
		c, err := s.byte()
		if err != nil || c > ' ' || c != ' ' && c != '\n' && c != '\r' && c != '\t' {
			return c, err
		}
	}
}

func (s *scanner) expect(want byte) error {
	got, err := s.token()
	if err == nil && got != want {
		err = fmt.Errorf("%w: found %q instead of %q", errMalformed, got, want)
	}
	return err
}

// raw reads a value, valid until the next read.
func (s *scanner) raw() ([]byte, error) {
	if _, err := s.token(); err != nil {
		return nil, err
	}
	s.at--
	s.kept = s.at
	err := s.value()
	raw := s.buffer[s.kept:s.at]
	s.kept = -1
	return raw, err
}

func (s *scanner) members(value func(name string) error) error {
	if err := s.expect('{'); err != nil {
		return err
	}
	return s.each('}', func() error {
		quoted, err := s.raw()
		if err != nil {
			return err
		}
		if quoted[0] != '"' {
			return fmt.Errorf("%w: %.20q is the name of a field", errMalformed, quoted)
		}
		name := unquoted(quoted)
		if err := s.expect(':'); err != nil {
			return err
		}
		return value(name)
	})
}

func (s *scanner) each(end byte, read func() error) error {
	for first := true; ; first = false {
		c, err := s.token()
		if err != nil || first && c == end {
			return err
		}
		s.at--
		if err := read(); err != nil {
			return err
		}
		if c, err = s.token(); err != nil || c == end {
			return err
		}
		if c != ',' {
			return unexpected(c)
		}
	}
}

func unexpected(c byte) error {
	return fmt.Errorf("%w: it is no JSON, because of %q", errMalformed, c)
}

func (s *scanner) value() error {
	s.open = s.open[:0]
	for {
		c, err := s.token()
		if err != nil {
			return err
		}
		ended := true
		switch c {
		case '"':
			err = s.text()
		case '{', '[':
			if len(s.open) == maxOpen {
				return fmt.Errorf("%w: it has more than %d brackets in one another", errMalformed, maxOpen)
			}
			s.open = append(s.open, c)
			ended, err = s.empty(c)
		case 't':
			err = s.word("rue")
		case 'f':
			err = s.word("alse")
		case 'n':
			err = s.word("ull")
		default:
			err = s.number(c)
		}
		for err == nil && ended && len(s.open) > 0 {
			ended, err = s.next()
		}
		if err != nil || ended {
			return err
		}
	}
}

const toClosing = '}' - '{'

// empty reads after an opening bracket: the closing one, which ends the value, or the first member's
// name.
func (s *scanner) empty(bracket byte) (ended bool, err error) {
	c, err := s.token()
	switch {
	case err != nil:
		return false, err
	case c == bracket+toClosing:
		s.open = s.open[:len(s.open)-1]
		return true, nil
	case bracket == '{':
		return false, s.name(c)
	}
	s.at--
	return false, nil
}

// next reads after a value within brackets: the closing one, or a comma and the next value's beginning.
func (s *scanner) next() (ended bool, err error) {
	bracket := s.open[len(s.open)-1]
	c, err := s.token()
	switch {
	case err != nil:
		return false, err
	case c == bracket+toClosing:
		s.open = s.open[:len(s.open)-1]
		return true, nil
	case c != ',':
		return false, unexpected(c)
	case bracket == '[':
		return false, nil
	}
	if c, err = s.token(); err != nil {
		return false, err
	}
	return false, s.name(c)
}

func (s *scanner) name(c byte) error {
	if c != '"' {
		return unexpected(c)
	}
	if err := s.text(); err != nil {
		return err
	}
	return s.expect(':')
}

func (s *scanner) text() error {
	for {
		for s.at < s.end && plain[s.buffer[s.at]] {
			s.at++
		}
		c, err := s.byte()
		switch {
		case err != nil:
			return err
		case plain[c]:
		case c == '"':
			return nil
		case c != '\\':
			return unexpected(c)
		default:
			if err := s.escape(); err != nil {
				return err
			}
		}
	}
}

var plain = func() (plain [256]bool) {
	for c := range plain {
		plain[c] = c >= ' ' && c != '"' && c != '\\'
	}
	return plain
}()

func (s *scanner) escape() error {
	c, err := s.byte()
	if err != nil {
		return err
	}
	if c != 'u' {
		if strings.IndexByte(`"\/bfnrt`, c) < 0 {
			return unexpected(c)
		}
		return nil
	}
	for range 4 {
		if c, err = s.byte(); err != nil {
			return err
		}
		if strings.IndexByte("0123456789abcdefABCDEF", c) < 0 {
			return unexpected(c)
		}
	}
	return nil
}

func (s *scanner) word(rest string) error {
	for i := range len(rest) {
		if c, err := s.byte(); err != nil || c != rest[i] {
			return cmp.Or(err, unexpected(c))
		}
	}
	return nil
}

func (s *scanner) number(c byte) error {
	if c != '-' && (c < '0' || c > '9') {
		return unexpected(c)
	}
	length := 1
	for {
		c, err := s.byte()
		if err != nil {
			return err
		}
		if c > '9' && c|0x20 != 'e' || c < '0' && c != '-' && c != '+' && c != '.' {
			s.at--
			break
		}
		length++
	}
	if number := s.buffer[s.at-length : s.at]; !json.Valid(number) {
		return unexpected(number[0])
	}
	return nil
}

// eachField visits the fields of a valid object; null has none.
func eachField(raw []byte, visit func(name, value []byte) error) error {
	i := afterSpace(raw, 0)
	if raw[i] != '{' {
		var none struct{}
		return decode(raw, &none)
	}
	for i = afterSpace(raw, i+1); raw[i] != '}'; {
		end := afterValue(raw, i)
		name := raw[i+1 : end-1]
		if bytes.IndexByte(name, '\\') >= 0 || !utf8.Valid(name) {
			name = []byte(unquoted(raw[i:end]))
		}
		begin := afterSpace(raw, afterSpace(raw, end)+1)
		end = afterValue(raw, begin)
		if err := visit(name, raw[begin:end]); err != nil {
			return err
		}
		if i = afterSpace(raw, end); raw[i] == ',' {
			i = afterSpace(raw, i+1)
		}
	}
	return nil
}

func afterSpace(raw []byte, i int) int {
	for raw[i] <= ' ' {
		i++
	}
	return i
}

func afterValue(raw []byte, i int) int {
	for depth := 0; ; {
		switch raw[i] {
		case '"':
			i = afterText(raw, i)
		case '{', '[':
			depth++
			i++
		case '}', ']':
			depth--
			i++
		default:
			for i++; i < len(raw) && strings.IndexByte("\"{}[],: \n\r\t", raw[i]) < 0; {
				i++
			}
		}
		if depth == 0 {
			return i
		}
	}
}

func afterText(raw []byte, i int) int {
	for {
		i++
		i += bytes.IndexByte(raw[i:], '"')
		backslashes := 0
		for raw[i-1-backslashes] == '\\' {
			backslashes++
		}
		if backslashes%2 == 0 {
			return i + 1
		}
	}
}

func unquoted(quoted []byte) string {
	var text string
	_ = readText(quoted, &text)
	return text
}

func readText(quoted []byte, into *string) error {
	if quoted[0] != '"' || bytes.IndexByte(quoted, '\\') >= 0 || !utf8.Valid(quoted) {
		return decode(quoted, into)
	}
	*into = string(quoted[1 : len(quoted)-1])
	return nil
}
