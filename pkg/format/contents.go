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

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// MaxOwnerBytes bounds an OwnerKey that is read.
const MaxOwnerBytes = 4 << 10

// Owner is the content of OwnerKey: the backup of the folder.
type Owner struct {
	UID        types.UID `json:"uid"`
	ClusterUID string    `json:"clusterUID,omitempty"`
}

// EncodeOwner returns the content of OwnerKey.
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

// Content has the size and digest of one object of a backup.
type Content struct {
	Size int64 `json:"size"`
	// SHA256 in hexadecimal.
	SHA256 string `json:"sha256"`
}

// ContentOf describes the bytes that sum has seen.
func ContentOf(size int64, sum hash.Hash) Content {
	return Content{Size: size, SHA256: hex.EncodeToString(sum.Sum(nil))}
}

// NewContent describes bytes.
func NewContent(data []byte) Content {
	sum := sha256.Sum256(data)
	return Content{Size: int64(len(data)), SHA256: hex.EncodeToString(sum[:])}
}

// Contents describes the objects stored before the metadata, by the last segment of their keys.
type Contents map[string]Content

// Of returns the content for a key, and whether it is known.
func (c Contents) Of(key string) (Content, bool) {
	content, ok := c[path.Base(key)]
	return content, ok
}

// Set records the content of an object by its key.
func (c Contents) Set(key string, content Content) { c[path.Base(key)] = content }

// Drop forgets an object by its key.
func (c Contents) Drop(key string) { delete(c, path.Base(key)) }

// TakeContents removes the contents from a decoded backup's annotations, and returns them; nil
// without.
func TakeContents(backup *v1alpha1.Backup) (Contents, error) {
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

// Mark writes a backup's uid into the header of a gzipped file, which readers ignore. Stores
// distinguish versions of an object by its bytes: without the mark, removing one backup's empty
// list could remove another's of the same name. The file must have no optional header.
func Mark(compressed []byte, uid types.UID) []byte {
	const (
		headerBytes = 10
		flagsAt     = 3
		comment     = 1 << 4
	)
	marked := make([]byte, 0, len(compressed)+len(uid)+1)
	marked = append(marked, compressed[:headerBytes]...)
	marked[flagsAt] |= comment
	marked = append(append(marked, uid...), 0)
	return append(marked, compressed[headerBytes:]...)
}
