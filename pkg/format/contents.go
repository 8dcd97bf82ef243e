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

// MaxOwnerBytes bounds an Owner.
const MaxOwnerBytes = 4 << 10

// Owner is the content of OwnerKey: the folder's backup.
type Owner struct {
	UID        types.UID `json:"uid"`
	ClusterUID string    `json:"clusterUID,omitempty"`
}

// EncodeOwner encodes an Owner.
func EncodeOwner(owner Owner) ([]byte, error) { return json.Marshal(owner) }

// DecodeOwner decodes an Owner.
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

// Content has an object's size and digest.
type Content struct {
	Size int64 `json:"size"`
	// In hexadecimal.
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

// Contents describes the objects stored before the metadata, by the last segment of the key.
type Contents map[string]Content

// Of returns a key's content, and whether it is known.
func (c Contents) Of(key string) (Content, bool) {
	content, ok := c[path.Base(key)]
	return content, ok
}

// Set records a key's content.
func (c Contents) Set(key string, content Content) { c[path.Base(key)] = content }

// Drop forgets a key.
func (c Contents) Drop(key string) { delete(c, path.Base(key)) }

// TakeContents removes and returns a decoded backup's annotation of contents, if any.
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

// Mark writes a backup's uid into the header of a gzipped file, which readers ignore and which must
// have no optional header. Stores know versions by their bytes: else removing one backup's empty list
// could remove another's of the same name.
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
