// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"bytes"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	utiljson "sigs.k8s.io/json"

	"github.com/holdfast-io/holdfast/pkg/format"
)

type head struct {
	APIVersion string
	Kind       string
	Metadata   headMeta

	original json.RawMessage
}

type headMeta struct {
	Name              string
	Namespace         string
	UID               types.UID
	DeletionTimestamp string
	Labels            map[string]string
	Annotations       map[string]string
	Owners            []string
}

// headOf reads valid JSON's head. It is case-sensitive, as the API and unlike encoding/json: a custom
// resource may have a field Metadata.
func headOf(raw []byte) (*head, error) {
	h := &head{}
	return h, eachField(raw, func(name, value []byte) error {
		switch string(name) {
		case "apiVersion":
			return readText(value, &h.APIVersion)
		case "kind":
			return readText(value, &h.Kind)
		case "metadata":
			return eachField(value, h.Metadata.read)
		}
		return nil
	})
}

func (m *headMeta) read(name, value []byte) error {
	switch string(name) {
	case "name":
		return readText(value, &m.Name)
	case "namespace":
		return readText(value, &m.Namespace)
	case "uid":
		return readText(value, (*string)(&m.UID))
	case "deletionTimestamp":
		return readText(value, &m.DeletionTimestamp)
	case "labels":
		return readTexts(value, &m.Labels)
	case "annotations":
		return readTexts(value, &m.Annotations)
	case "ownerReferences":
		var owners []struct {
			UID string `json:"uid"`
		}
		if err := decode(value, &owners); err != nil {
			return err
		}
		m.Owners = nil
		for _, owner := range owners {
			m.Owners = append(m.Owners, owner.UID)
		}
	}
	return nil
}

func readTexts(raw []byte, into *map[string]string) error {
	if raw[0] == 'n' {
		*into = nil
	}
	return eachField(raw, func(name, value []byte) error {
		var text string
		if err := readText(value, &text); err != nil {
			return err
		}
		if *into == nil {
			*into = map[string]string{}
		}
		(*into)[string(name)] = text
		return nil
	})
}

func (h *head) unwanted() bool { return h.Metadata.Labels[format.LabelExclude] == "true" }

func (h *head) whyLeftOut() string {
	switch {
	case h.unwanted():
		return "left out: it has the label " + format.LabelExclude + "=true"
	case h.Metadata.DeletionTimestamp != "":
		return "left out: it is being deleted"
	}
	return ""
}

func decode(raw []byte, into any) error {
	if err := utiljson.UnmarshalCaseSensitivePreserveInts(raw, into); err != nil {
		return fmt.Errorf("read an object: %w", err)
	}
	return nil
}

// appendContent appends the object as stored: compact, with kind and version, which items of built-in
// lists lack.
func appendContent(to, raw []byte, h *head, r resource) ([]byte, error) {
	raw = bytes.TrimSpace(raw)
	// JSON strings have no line break: this finds indented JSON.
	if bytes.IndexByte(raw, '\n') >= 0 {
		var compact bytes.Buffer
		if err := json.Compact(&compact, raw); err != nil {
			return to, fmt.Errorf("read an object: %w", err)
		}
		raw = compact.Bytes()
	}
	if h.APIVersion != "" && h.Kind != "" {
		return append(to, raw...), nil
	}
	// Kinds and versions need no escaping.
	to = append(to, '{')
	for _, field := range []struct{ name, has, lacks string }{
		{"apiVersion", h.APIVersion, r.apiVersion},
		{"kind", h.Kind, r.kind},
	} {
		if field.has == "" {
			to = append(append(append(append(append(to, '"'), field.name...), `":"`...), field.lacks...), `",`...)
		}
	}
	return append(to, raw[1:]...), nil
}
