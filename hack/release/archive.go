// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"sigs.k8s.io/yaml"
)

// member is one file of an archive.
type member struct {
	name    string
	mode    int64
	content []byte
}

// packTar makes a tar.gz whose bytes depend on its members and their time only.
func packTar(members []member, created time.Time) ([]byte, error) {
	var out bytes.Buffer
	compressed := gzip.NewWriter(&out)
	archive := tar.NewWriter(compressed)
	for _, m := range members {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: m.name, Mode: m.mode, Size: int64(len(m.content)), ModTime: created}
		if err := archive.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := archive.Write(m.content); err != nil {
			return nil, err
		}
	}
	err := errors.Join(archive.Close(), compressed.Close())
	return out.Bytes(), err
}

// packZip does the same as a zip.
func packZip(members []member, created time.Time) ([]byte, error) {
	var out bytes.Buffer
	archive := zip.NewWriter(&out)
	for _, m := range members {
		header := &zip.FileHeader{Name: m.name, Method: zip.Deflate, Modified: created}
		header.SetMode(os.FileMode(m.mode))
		w, err := archive.CreateHeader(header)
		if err != nil {
			return nil, err
		}
		if _, err := w.Write(m.content); err != nil {
			return nil, err
		}
	}
	err := archive.Close()
	return out.Bytes(), err
}

func digest(content []byte) string { return fmt.Sprintf("%x", sha256.Sum256(content)) }

// checksums lists the files as sha256sum does.
func checksums(files map[string][]byte) []byte {
	var out bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(&out, "%s  %s\n", digest(files[name]), name)
	}
	return out.Bytes()
}

// sign signs a file as `cosign sign-blob --key` does: an ECDSA signature of its SHA-256, in
// base64. The same key and file make the same signature.
func sign(key string, content []byte) ([]byte, error) {
	text, err := os.ReadFile(key)
	if err != nil {
		return nil, fmt.Errorf("key: %w", err)
	}
	const want = "want a private key for ECDSA with P-256, in PKCS 8 and PEM, as openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 makes it"
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "PRIVATE KEY" {
		return nil, fmt.Errorf("key: %s is no such file: %s", key, want)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("key: %s: %w: %s", key, err, want)
	}
	private, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || private.Curve != elliptic.P256() {
		return nil, fmt.Errorf("key: %s has a key of the type %T: %s", key, parsed, want)
	}
	sum := sha256.Sum256(content)
	// Without a source of randomness the signature follows from key and file (RFC 6979).
	signature, err := private.Sign(nil, sum[:], crypto.SHA256)
	if err != nil {
		return nil, fmt.Errorf("sign: %w", err)
	}
	return []byte(base64.StdEncoding.EncodeToString(signature) + "\n"), nil
}

// krew returns the manifest by which `kubectl krew` installs the plugin.
func krew(programs []program, files map[string][]byte, version string) ([]byte, error) {
	var platforms []any
	for _, p := range programs {
		if p.name != plugin {
			continue
		}
		bin := plugin
		if p.os == "windows" {
			bin += ".exe"
		}
		platforms = append(platforms, map[string]any{
			"selector": map[string]any{"matchLabels": map[string]any{"os": p.os, "arch": p.architecture}},
			"uri":      home + "/releases/download/" + version + "/" + p.archive(version),
			"sha256":   digest(files[p.archive(version)]),
			"bin":      bin,
			"files":    []any{map[string]any{"from": bin, "to": "."}, map[string]any{"from": "LICENSE", "to": "."}},
		})
	}
	if len(platforms) == 0 {
		return nil, errors.New("there is no program " + plugin)
	}
	return yaml.Marshal(map[string]any{
		"apiVersion": "krew.googlecontainer.sh/v1alpha2", "kind": "Plugin",
		"metadata": map[string]any{"name": "holdfast"},
		"spec": map[string]any{
			"version": version, "homepage": home,
			"shortDescription": "Back up and restore with Holdfast",
			"description": "Creates, lists and restores backups of a cluster that has Holdfast, shows its queue,\n" +
				"and finds the backups that hold an object.\n",
			"platforms": platforms,
		},
	})
}
