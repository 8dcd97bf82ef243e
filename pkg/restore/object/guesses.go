// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package object

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const maxMentions = 3

type mentions struct {
	rules *Rules
	at    []string
	names map[string]bool
}

// inTexts returns a pattern for namespaces in texts: in names of Services, accounts and identities,
// in URLs, after the word namespace, and before an object's name. The last counts only as an
// argument's value or with a port, since images look like it.
func inTexts(namespaces []string) *regexp.Regexp {
	quoted := make([]string, len(namespaces))
	for i, namespace := range namespaces {
		quoted[i] = regexp.QuoteMeta(namespace)
	}
	const end = `(?:[^a-z0-9-]|$)`
	name := `(` + strings.Join(quoted, "|") + `)`
	return regexp.MustCompile(strings.Join([]string{
		`(?:^|[^a-z0-9-])` + name + `\.svc` + end,
		`//[a-z0-9-]+\.` + name + `(?:[:/]|$)`,
		`^[a-z0-9-]+\.` + name + `:[0-9]+$`,
		`system:serviceaccounts?:` + name + end,
		`(?:^|/)ns/` + name + `(?:/|$)`,
		`[nN]amespaces?["']?(?:/|\s*[:=~ ]+\s*)["']?` + name + end,
		`=` + name + `/[a-z0-9.-]+$`,
		`^` + name + `/[a-z0-9.-]+:(?:22|25|53|80|[0-9]{3,5})$`,
		`\.svc:[0-9]+/` + name + `/`, // an image of a registry in the cluster
		`_` + name + `_svc_`,         // a Service in Kuma
	}, "|"))
}

// guesses finds where an object seems to name mapped namespaces, except targets, outside the places
// of its schema.
func (r *Rules) guesses(o *unstructured.Unstructured) mentions {
	found := mentions{rules: r, names: map[string]bool{}}
	if r.mentioned == nil || isDefinition(o) { // a schema has names of fields
		return found
	}
	for _, field := range slices.Sorted(maps.Keys(o.Object)) {
		switch field {
		case "apiVersion", "kind", "metadata":
		case "data":
			if o.GetKind() == "Secret" && o.GetAPIVersion() == "v1" {
				found.inSecret(nested(o.Object, "data"))
				continue
			}
			fallthrough
		default:
			found.in(field, o.Object[field])
		}
	}
	found.text("metadata.name", o.GetName())
	annotations := o.GetAnnotations()
	for _, name := range slices.Sorted(maps.Keys(annotations)) {
		if name == corev1.LastAppliedConfigAnnotation || namedIn[name] != nil {
			continue
		}
		at := "metadata.annotations[" + name + "]"
		if namespace, _, ok := strings.Cut(annotations[name], "/"); ok && r.isMapped(namespace) {
			found.add(at, namespace)
			continue
		}
		found.text(at, annotations[name])
	}
	return found
}

func (r *Rules) isMapped(namespace string) bool { return slices.Contains(r.left, namespace) }

func (m *mentions) add(at, namespace string) {
	m.at = append(m.at, at)
	m.names[namespace] = true
}

func (m *mentions) in(at string, value any) {
	if len(m.at) > maxMentions {
		return
	}
	says := func(field, suffix string) bool { return strings.HasSuffix(strings.ToLower(field), suffix) }
	switch value := value.(type) {
	case map[string]any:
		variable, _ := value["name"].(string)
		for _, field := range slices.Sorted(maps.Keys(value)) {
			named, ok := value[field].(string)
			if ok && (says(field, "namespace") || field == "value" && says(variable, "namespace")) && m.rules.isMapped(named) {
				m.add(at+"."+field, named)
				continue
			}
			m.in(at+"."+field, value[field])
		}
	case []any:
		for i, element := range value {
			at := fmt.Sprintf("%s[%d]", at, i)
			if named, ok := element.(string); ok && says(strings.TrimSuffix(at, fmt.Sprintf("[%d]", i)), "namespaces") && m.rules.isMapped(named) {
				m.add(at, named)
				continue
			}
			m.in(at, element)
		}
	case string:
		m.text(at, value)
	}
}

func (m *mentions) text(at, value string) {
	match := m.rules.mentioned.FindStringSubmatch(value)
	if match == nil {
		return
	}
	for _, namespace := range match[1:] {
		if namespace != "" {
			m.add(at, namespace)
			return
		}
	}
}

// inSecret looks at a Secret's texts, and at names in its certificates.
func (m *mentions) inSecret(data map[string]any) {
	for _, field := range slices.Sorted(maps.Keys(data)) {
		encoded, _ := data[field].(string)
		decoded, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil || !utf8.Valid(decoded) {
			continue
		}
		before := len(m.at)
		m.text("data."+field, string(decoded))
		for rest := decoded; len(m.at) == before; {
			var block *pem.Block
			if block, rest = pem.Decode(rest); block == nil {
				break
			}
			certificate, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				continue
			}
			for _, name := range certificate.DNSNames {
				if len(m.at) == before {
					m.text("data."+field+" (a certificate for "+name+")", name)
				}
			}
		}
	}
}
