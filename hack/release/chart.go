// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

var (
	chartVersion = regexp.MustCompile(`(?m)^version: .*$`)
	appVersion   = regexp.MustCompile(`(?m)^appVersion: .*$`)
)

// chart packs the chart with a version of its own, and with the image of the release.
func (r release) chart(version string) ([]byte, error) {
	folder := os.DirFS(filepath.Join(r.tree, "charts/holdfast"))
	var members []member
	err := fs.WalkDir(folder, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(folder, name)
		if err != nil {
			return err
		}
		if name == "Chart.yaml" {
			for field, line := range map[*regexp.Regexp]string{chartVersion: "version: " + version, appVersion: "appVersion: " + r.version} {
				if found := len(field.FindAll(content, -1)); found != 1 {
					return fmt.Errorf("the file Chart.yaml has %d lines like %s, want one", found, field)
				}
				content = field.ReplaceAll(content, []byte(line))
			}
		}
		members = append(members, member{path.Join("holdfast", name), 0o644, content})
		return nil
	})
	if err != nil {
		return nil, err
	}
	return packTar(members, r.created)
}

// manifests renders the kustomization with the image of the release.
func (r release) manifests() ([]byte, error) {
	all, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join(r.tree, "artifacts"))
	if err != nil {
		return nil, err
	}
	content, err := all.AsYaml()
	if err != nil {
		return nil, err
	}
	placeholder := []byte("image: " + image + ":" + built + "\n")
	if found := bytes.Count(content, placeholder); found != 3 {
		return nil, fmt.Errorf("%d workloads have the image %s:%s, want 3", found, image, built)
	}
	return bytes.ReplaceAll(content, placeholder, []byte("image: "+image+":"+r.version+"\n")), nil
}
