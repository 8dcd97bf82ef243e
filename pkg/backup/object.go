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

// head is what the reading looks at in every object. All else stays as the
// server wrote it.
type head struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Metadata   headMeta `json:"metadata"`

	// original is what was removed from the object, as a merge patch.
	original json.RawMessage
}

type headMeta struct {
	Name              string            `json:"name"`
	Namespace         string            `json:"namespace"`
	UID               types.UID         `json:"uid"`
	DeletionTimestamp string            `json:"deletionTimestamp"`
	Labels            map[string]string `json:"labels"`
	Annotations       map[string]string `json:"annotations"`
	Owners            []struct {
		UID string `json:"uid"`
	} `json:"ownerReferences"`
}

// whyLeftOut says why the object itself does not want to be backed up, or "".
func (h *head) whyLeftOut() string {
	switch {
	case h.Metadata.Labels[format.LabelExclude] == "true":
		return "left out: it has the label " + format.LabelExclude + "=true"
	case h.Metadata.DeletionTimestamp != "":
		return "left out: it is being deleted"
	}
	return ""
}

// decode reads part of an object. Unlike encoding/json it tells the case of
// names, as the API does: custom resources may have a field Metadata of their own.
func decode(raw []byte, into any) error {
	if err := utiljson.UnmarshalCaseSensitivePreserveInts(raw, into); err != nil {
		return fmt.Errorf("read an object: %w", err)
	}
	return nil
}

// content is the object as it is stored: compact, and with the kind and version
// that the items of a list of built-in types lack. It may share raw's memory, or
// use that of buffer.
func content(raw []byte, h *head, r resource, buffer *bytes.Buffer) ([]byte, error) {
	raw = bytes.TrimSpace(raw)
	// A JSON string has no line break, so this finds what a server has indented.
	buffer.Reset()
	if bytes.IndexByte(raw, '\n') >= 0 {
		if err := json.Compact(buffer, raw); err != nil {
			return nil, fmt.Errorf("read an object: %w", err)
		}
		raw = bytes.Clone(buffer.Bytes())
		buffer.Reset()
	}
	if h.APIVersion != "" && h.Kind != "" {
		return raw, nil
	}
	// Kinds and versions need no escaping. The object has a name, so that more
	// follows the brace.
	buffer.WriteByte('{')
	for _, field := range []struct{ name, has, lacks string }{
		{"apiVersion", h.APIVersion, r.apiVersion},
		{"kind", h.Kind, r.kind},
	} {
		if field.has == "" {
			buffer.WriteByte('"')
			buffer.WriteString(field.name)
			buffer.WriteString(`":"`)
			buffer.WriteString(field.lacks)
			buffer.WriteString(`",`)
		}
	}
	buffer.Write(raw[1:])
	return buffer.Bytes(), nil
}
