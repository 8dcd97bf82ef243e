// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package format

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"unicode/utf16"
)

// AnnotationSignature has an Ed25519 signature of the metadata's canonical form without it:
// docs/format.md ("The signature"). The reader decides whether to trust the signer. The canonical form
// is RFC 8785's, for exact integers. It begins with apiVersion and kind, so a signature fits no other
// kind.

const maxInteger = 1<<53 - 1

var errNotCanonical = errors.New("it has no canonical form")

// SigningKey signs the metadata of a cluster's backups. It does not print itself.
type SigningKey struct{ private ed25519.PrivateKey }

// NewSigningKey makes a key of 32 random bytes.
func NewSigningKey(random io.Reader) (*SigningKey, error) {
	seed := make([]byte, ed25519.SeedSize)
	if _, err := io.ReadFull(random, seed); err != nil {
		return nil, fmt.Errorf("make a signing key: %w", err)
	}
	return ParseSigningKey(seed)
}

// ParseSigningKey reverses Seed.
func ParseSigningKey(seed []byte) (*SigningKey, error) {
	if len(seed) != ed25519.SeedSize {
		return nil, fmt.Errorf("a signing key has %d bytes, not %d", ed25519.SeedSize, len(seed))
	}
	return &SigningKey{ed25519.NewKeyFromSeed(seed)}, nil
}

// Seed returns the secret.
func (k *SigningKey) Seed() []byte { return k.private.Seed() }

// PublicKey returns the public half as in annotations and settings.
func (k *SigningKey) PublicKey() string {
	return base64.StdEncoding.EncodeToString(k.private.Public().(ed25519.PublicKey))
}

// String implements fmt.Stringer.
func (k *SigningKey) String() string { return "signing key of " + k.PublicKey() }

// GoString implements fmt.GoStringer.
func (k *SigningKey) GoString() string { return k.String() }

func (k *SigningKey) sign(metadata []byte) (string, error) {
	canonical, err := canonicalise(metadata)
	if err != nil {
		return "", err
	}
	return base64.StdEncoding.EncodeToString(ed25519.Sign(k.private, canonical)), nil
}

// verify returns the canonical form. Only use that: metadata with duplicate names may be read
// differently.
func verify(metadata []byte) ([]byte, error) {
	document, err := parse(metadata)
	if err != nil {
		return nil, err
	}
	root, _ := document.(map[string]any)
	meta, _ := root["metadata"].(map[string]any)
	annotations, _ := meta["annotations"].(map[string]any)
	public, err := decodeBase64(annotations[AnnotationPublicKey], ed25519.PublicKeySize)
	if err != nil {
		return nil, fmt.Errorf("the annotation %s: %w", AnnotationPublicKey, err)
	}
	signature, err := decodeBase64(annotations[AnnotationSignature], ed25519.SignatureSize)
	if err != nil {
		return nil, fmt.Errorf("the annotation %s: %w", AnnotationSignature, err)
	}
	delete(annotations, AnnotationSignature)
	canonical, err := appendCanonical(nil, document)
	if err != nil {
		return nil, err
	}
	if !ed25519.Verify(public, canonical, signature) {
		return nil, errors.New("it was changed after it was signed")
	}
	return canonical, nil
}

func decodeBase64(value any, size int) ([]byte, error) {
	text, _ := value.(string)
	decoded, err := base64.StdEncoding.DecodeString(text)
	// One key has one form; even strict decoding accepts line breaks.
	if err != nil || len(decoded) != size || base64.StdEncoding.EncodeToString(decoded) != text {
		return nil, fmt.Errorf("not %d bytes in base64", size)
	}
	return decoded, nil
}

func canonicalise(data []byte) ([]byte, error) {
	document, err := parse(data)
	if err != nil {
		return nil, err
	}
	return appendCanonical(nil, document)
}

func parse(data []byte) (any, error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	var document any
	if err := decoder.Decode(&document); err != nil {
		return nil, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more after the end of the document")
	}
	return document, nil
}

func appendCanonical(to []byte, value any) ([]byte, error) {
	switch value := value.(type) {
	case nil:
		return append(to, "null"...), nil
	case bool:
		return strconv.AppendBool(to, value), nil
	case string:
		return appendCanonicalString(to, value), nil
	case json.Number:
		n, err := strconv.ParseInt(value.String(), 10, 64)
		if err != nil || n > maxInteger || n < -maxInteger || strconv.FormatInt(n, 10) != value.String() {
			return nil, fmt.Errorf("%w: the number %s", errNotCanonical, value)
		}
		return append(to, value.String()...), nil
	case []any:
		to = append(to, '[')
		for i, element := range value {
			if i > 0 {
				to = append(to, ',')
			}
			var err error
			if to, err = appendCanonical(to, element); err != nil {
				return nil, err
			}
		}
		return append(to, ']'), nil
	case map[string]any:
		to = append(to, '{')
		for i, name := range slices.SortedFunc(maps.Keys(value), compareUTF16) {
			if i > 0 {
				to = append(to, ',')
			}
			to = append(appendCanonicalString(to, name), ':')
			var err error
			if to, err = appendCanonical(to, value[name]); err != nil {
				return nil, err
			}
		}
		return append(to, '}'), nil
	default:
		return nil, fmt.Errorf("%w: a %T", errNotCanonical, value)
	}
}

// compareUTF16 orders names as RFC 8785.
func compareUTF16(a, b string) int {
	return slices.Compare(utf16.Encode([]rune(a)), utf16.Encode([]rune(b)))
}

func appendCanonicalString(to []byte, s string) []byte {
	to = append(to, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			to = append(to, '\\', c)
		case c == '\b':
			to = append(to, `\b`...)
		case c == '\f':
			to = append(to, `\f`...)
		case c == '\n':
			to = append(to, `\n`...)
		case c == '\r':
			to = append(to, `\r`...)
		case c == '\t':
			to = append(to, `\t`...)
		case c < ' ':
			to = fmt.Appendf(to, `\u%04x`, c)
		default:
			to = append(to, c)
		}
	}
	return append(to, '"')
}
