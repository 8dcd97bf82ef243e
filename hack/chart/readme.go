// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	kyaml "sigs.k8s.io/kustomize/kyaml/yaml"
	"sigs.k8s.io/yaml"
)

const readmeHead = `<!-- Written by hack/chart from values.yaml: change its comments, and run make generate. -->
# The Helm chart of Holdfast
[docs/quickstart.md](../../docs/quickstart.md) installs Holdfast by this chart, and
[docs/install.md](../../docs/install.md#with-helm) says what an upgrade, a rollback and a removal do.
A schema refuses values that mean nothing.

    helm install holdfast charts/holdfast --namespace holdfast --create-namespace --wait
    helm test holdfast --namespace holdfast

## Values
`

// readme describes the values by their comments.
func readme(path string) (string, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	file, err := kyaml.Parse(string(content))
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	text := &strings.Builder{}
	text.WriteString(readmeHead)
	// A field of several roles is described once.
	described := map[string]string{}
	root := file.YNode().Content
	for i := 0; i < len(root); i += 2 {
		name, value, comment := root[i].Value, root[i+1], words(root[i].HeadComment)
		if value.Kind != kyaml.MappingNode || value.Style&kyaml.FlowStyle != 0 {
			fmt.Fprintf(text, "\n### `%s`\n| value | default | meaning |\n|---|---|---|\n", name)
			if err := row(text, name, value, comment); err != nil {
				return "", err
			}
			continue
		}
		fmt.Fprintf(text, "\n### `%s`\n", name)
		if comment != "" {
			text.WriteString(comment + "\n\n")
		}
		text.WriteString("| value | default | meaning |\n|---|---|---|\n")
		if err := rows(text, name, value, described); err != nil {
			return "", err
		}
	}
	return text.String(), nil
}

func rows(text *strings.Builder, path string, of *kyaml.Node, described map[string]string) error {
	for i := 0; i < len(of.Content); i += 2 {
		name, value, comment := of.Content[i].Value, of.Content[i+1], words(of.Content[i].HeadComment)
		if value.Kind == kyaml.MappingNode && value.Style&kyaml.FlowStyle == 0 {
			if err := rows(text, path+"."+name, value, described); err != nil {
				return err
			}
			continue
		}
		if comment == "" {
			comment = described[name]
		} else if described[name] == "" {
			described[name] = comment
		}
		if err := row(text, path+"."+name, value, comment); err != nil {
			return err
		}
	}
	return nil
}

func row(text *strings.Builder, path string, value *kyaml.Node, comment string) error {
	written, err := kyaml.NewRNode(value).String()
	if err != nil {
		return err
	}
	var parsed any
	if err := yaml.Unmarshal([]byte(written), &parsed); err != nil {
		return err
	}
	shown, err := json.Marshal(parsed)
	fmt.Fprintf(text, "| `%s` | `%s` | %s |\n", path, shown, comment)
	return err
}

// words are the words of a comment, in one line.
func words(comment string) string {
	var lines []string
	for line := range strings.Lines(comment) {
		lines = append(lines, strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "#")))
	}
	return strings.ReplaceAll(strings.TrimSpace(strings.Join(lines, " ")), "|", "\\|")
}
