// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package storedtest writes backups for tests without a cluster.
package storedtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/holdfast-io/holdfast/pkg/backup/archive"
	"github.com/holdfast-io/holdfast/pkg/encryption"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// Object is an object to store.
type Object struct {
	// Kind is as Item.GroupKind, Resource its name in paths.
	Kind, Resource  string
	Namespace, Name string
	Labels          map[string]string
	Content         []byte
}

// Items writes the tarball, and returns the objects' items, in order.
func Items(t testing.TB, tarball io.Writer, objects []Object) []*manifest.Item {
	t.Helper()
	w, err := archive.NewWriter(tarball, time.Unix(1, 0), "uid")
	if err != nil {
		t.Fatal(err)
	}
	var items []*manifest.Item
	for _, o := range objects {
		parts := strings.Split(o.Kind, "/")
		group, version, kind := strings.Join(parts[:len(parts)-2], "/"), parts[len(parts)-2], parts[len(parts)-1]
		if o.Content == nil {
			labels, err := json.Marshal(o.Labels)
			if err != nil {
				t.Fatal(err)
			}
			o.Content = fmt.Appendf(nil, `{"apiVersion":%q,"kind":%q,"metadata":{"name":%q,"namespace":%q,"labels":%s}}`,
				schema.GroupVersion{Group: group, Version: version}, kind, o.Name, o.Namespace, labels)
		}
		place, err := w.WriteItem(archive.Item{
			Resource: schema.GroupResource{Group: group, Resource: o.Resource}, Version: version, Namespace: o.Namespace, Name: o.Name,
		}, o.Content)
		if err != nil {
			t.Fatal(err)
		}
		content := format.NewContent(o.Content)
		_, images := manifest.NeedsOf(schema.GroupKind{Group: group, Kind: kind}, o.Namespace, o.Content)
		items = append(items, &manifest.Item{
			APIGroup: group, APIVersion: version, KindName: kind, Resource: o.Resource, Namespace: o.Namespace, Name: o.Name,
			UID: fmt.Sprint("uid-", len(items)), Labels: o.Labels, Images: images, Size: content.Size, SHA256: content.SHA256, Place: manifest.Place(place),
		})
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return items
}

// Manifest returns the document of items.
func Manifest(t testing.TB, items []*manifest.Item) []byte {
	t.Helper()
	var w manifest.Writer
	for _, item := range items {
		if err := w.Add(item); err != nil {
			t.Fatal(err)
		}
	}
	var document bytes.Buffer
	if _, err := w.WriteTo(&document); err != nil {
		t.Fatal(err)
	}
	return document.Bytes()
}

// Write stores a backup's tarball and manifest.
func Write(t testing.TB, to store.Writer, storeName string, objects ...Object) {
	t.Helper()
	WriteEncrypted(t, to, storeName, nil, objects...)
}

// WriteEncrypted is Write of an encrypted backup, whose objects have contents.
func WriteEncrypted(t testing.TB, to store.Writer, storeName string, recipients *encryption.Recipients, objects ...Object) {
	t.Helper()
	var tarball, stored bytes.Buffer
	items := Items(t, &tarball, objects)
	if recipients != nil {
		for i, o := range objects {
			items[i].SHA256 = recipients.Digest(o.Content)
		}
	}
	w, err := recipients.Encrypt(&stored)
	if err == nil {
		_, err = w.Write(tarball.Bytes())
	}
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	for key, content := range map[string][]byte{recipients.Key(storeName): stored.Bytes(), format.ManifestKey(storeName): Manifest(t, items)} {
		if err := to.Put(context.WithoutCancel(t.Context()), key, content); err != nil {
			t.Fatal(err)
		}
	}
}
