// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package format

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"path"

	"k8s.io/apimachinery/pkg/types"

	holdfast "github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// MaxOwnerBytes is the size beyond which OwnerKey is not read.
const MaxOwnerBytes = 4 << 10

// Owner is the content of OwnerKey: the backup that the folder belongs to.
type Owner struct {
	// UID is that of the Backup.
	UID types.UID `json:"uid"`
	// ClusterUID is that of its cluster, as Cluster.UID.
	ClusterUID string `json:"clusterUID,omitempty"`
}

// EncodeOwner gives the content of OwnerKey.
func EncodeOwner(owner Owner) ([]byte, error) { return json.Marshal(owner) }

// DecodeOwner reads the content of OwnerKey.
func DecodeOwner(data []byte) (Owner, error) {
	var owner Owner
	if err := json.Unmarshal(data, &owner); err != nil {
		return Owner{}, fmt.Errorf("it is not the JSON of an owner: %w", err)
	}
	if owner.UID == "" {
		return Owner{}, errors.New("it names no owner")
	}
	return owner, nil
}

// Content is what one object of a backup holds.
type Content struct {
	// Size is in bytes.
	Size int64 `json:"size"`
	// SHA256 is the digest in hexadecimal.
	SHA256 string `json:"sha256"`
}

// ContentOf describes bytes, of which sum has seen all.
func ContentOf(size int64, sum hash.Hash) Content {
	return Content{Size: size, SHA256: hex.EncodeToString(sum.Sum(nil))}
}

// NewContent describes bytes.
func NewContent(data []byte) Content {
	sum := sha256.Sum256(data)
	return Content{Size: int64(len(data)), SHA256: hex.EncodeToString(sum[:])}
}

// Contents are those of the objects of a backup that were stored before its
// metadata, by the last segment of their keys.
type Contents map[string]Content

// Of gives the content of an object by its key, and whether it is known.
func (c Contents) Of(key string) (Content, bool) {
	content, ok := c[path.Base(key)]
	return content, ok
}

// Set records the content of an object by its key.
func (c Contents) Set(key string, content Content) { c[path.Base(key)] = content }

// TakeContents removes from a decoded backup the annotation with its contents, which
// is of no use to people, and returns them. They are nil for a backup without.
func TakeContents(backup *holdfast.Backup) (Contents, error) {
	contents, err := contentsOf(backup.Annotations)
	delete(backup.Annotations, AnnotationContents)
	return contents, err
}

func contentsOf(annotations map[string]string) (Contents, error) {
	encoded, ok := annotations[AnnotationContents]
	if !ok {
		return nil, nil
	}
	var contents Contents
	if err := json.Unmarshal([]byte(encoded), &contents); err != nil {
		return nil, fmt.Errorf("the annotation %s is not the JSON of contents: %w", AnnotationContents, err)
	}
	return contents, nil
}

// Mark writes the uid of a backup into the header of a gzipped file, where readers
// ignore it. Without, files of equal content, such as empty lists, would be equal
// in two backups, and stores tell the versions of an object by its bytes: a removal
// of the one could meet the other. The file must have been compressed without a
// header of its own.
func Mark(compressed []byte, uid types.UID) []byte {
	const (
		headerBytes = 10 // RFC 1952
		flagsAt     = 3
		comment     = 1 << 4
	)
	marked := make([]byte, 0, len(compressed)+len(uid)+1)
	marked = append(marked, compressed[:headerBytes]...)
	marked[flagsAt] |= comment
	marked = append(append(marked, uid...), 0)
	return append(marked, compressed[headerBytes:]...)
}
