// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"fmt"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// sbom lists the modules that a program is built from, as the Go toolchain has recorded them
// in it.
func sbom(p program, content []byte, version string, created time.Time) ([]byte, error) {
	info, err := buildinfo.Read(bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(content)
	root := cdx.Component{
		BOMRef: purl(info.Main.Path, version), Type: cdx.ComponentTypeApplication, Name: p.name, Version: version,
		PackageURL: purl(info.Main.Path, version),
		Hashes:     &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: fmt.Sprintf("%x", sum)}},
		Licenses:   &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}},
		Properties: &[]cdx.Property{{Name: "go:os", Value: p.os}, {Name: "go:architecture", Value: p.architecture}},
	}
	components := []cdx.Component{library("std", strings.TrimPrefix(info.GoVersion, "go"))}
	for _, module := range info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		components = append(components, library(module.Path, module.Version))
	}
	needs := make([]string, len(components))
	for i, component := range components {
		needs[i] = component.BOMRef
	}
	bom := cdx.NewBOM()
	// A program has one list, so the number of the list follows from the program.
	bom.SerialNumber = serial(sum)
	bom.Metadata = &cdx.Metadata{Timestamp: created.Format(time.RFC3339), Component: &root}
	bom.Components = &components
	bom.Dependencies = &[]cdx.Dependency{{Ref: root.BOMRef, Dependencies: &needs}}
	var out bytes.Buffer
	err = cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cdx.SpecVersion1_6)
	return out.Bytes(), err
}

// serial makes a UUID of version 8 out of a checksum.
func serial(sum [sha256.Size]byte) string {
	sum[6], sum[8] = sum[6]&0x0f|0x80, sum[8]&0x3f|0x80
	return fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}

func library(path, version string) cdx.Component {
	name := purl(path, version)
	return cdx.Component{BOMRef: name, Type: cdx.ComponentTypeLibrary, Name: path, Version: version, PackageURL: name}
}

// purl is the name of a module among all packages.
func purl(path, version string) string {
	return "pkg:golang/" + path + "@" + strings.ReplaceAll(version, "+", "%2B")
}
