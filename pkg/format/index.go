// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package format

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// A cluster's index says in a few objects what it has read of all backups in a location, so
// that a reader need not read each again. It is derived: whoever finds it missing, old or
// spoilt reads the backups themselves.
//
// No object of it is written twice. Segments are named by the digest of their content, and
// heads in the order in which they are written; the newest head is the index. It names the
// segments, holds what is newer than these, and is signed as metadata is: its first line is
// the signed document, which has the digest of the rest.

const (
	// MaxIndexHeadBytes and MaxIndexSegmentBytes are the sizes beyond which they are not read.
	MaxIndexHeadBytes    = 16 << 20
	MaxIndexSegmentBytes = 32 << 20
	// MaxIndexSegments is how many segments a head names at most.
	MaxIndexSegments = 1000

	maxIndexDocumentBytes = 1 << 20
	indexKind             = "CatalogIndex"
	indexAPIVersion       = "holdfast.io/v1"
	// IndexesPrefix is the folder of the indexes of all clusters.
	IndexesPrefix = HoldfastPrefix + "index/"
)

// IndexHead is the head of an index.
type IndexHead struct {
	// ClusterUID and PublicKey are those of the cluster that has signed it. Whose the key
	// is, is the reader's to know.
	ClusterUID, PublicKey string
	// Segments are what it rests on.
	Segments []IndexSegment
	// Boundaries are some store names, in order, which part all names into ranges that are
	// about as long as a page of a listing: a hint.
	Boundaries []string
}

// IndexSegment is a segment as its head names it.
type IndexSegment struct {
	// SHA256 is the digest of the object, which is its name.
	SHA256 string `json:"sha256"`
	// Size is in bytes.
	Size int64 `json:"size"`
	// Entries and Rows are how many backups and volumes it holds.
	Entries int64 `json:"entries"`
	Rows    int64 `json:"rows"`
}

// storedIndexHead is the first line of the object.
type storedIndexHead struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        storedIndexMetadata `json:"metadata"`
	Spec            storedIndexSpec     `json:"spec"`
}

type storedIndexMetadata struct {
	Annotations map[string]string `json:"annotations"`
}

type storedIndexSpec struct {
	Segments   []IndexSegment `json:"segments,omitempty"`
	Boundaries []string       `json:"boundaries,omitempty"`
	// Newest is what follows the line.
	Newest Content `json:"newest"`
}

// IndexPrefix is the folder of a cluster's index.
func IndexPrefix(clusterUID string) string { return IndexesPrefix + clusterUID + "/" }

// IndexHeadKey is a head of a cluster's index: of two, the one with the greater number is
// newer.
func IndexHeadKey(clusterUID string, number int64) string {
	return fmt.Sprintf("%shead-%016x", IndexPrefix(clusterUID), number)
}

// IndexSegmentKey is a segment of a cluster's index.
func IndexSegmentKey(clusterUID, digest string) string {
	return IndexPrefix(clusterUID) + "segment-" + digest
}

var indexName = regexp.MustCompile(`^([0-9A-Za-z-]{1,64})/(?:head-([0-7][0-9a-f]{15})|segment-([0-9a-f]{64}))$`)

// ParseIndexKey is the inverse of IndexHeadKey and IndexSegmentKey, of which the latter has a
// digest. It is false for any other key.
func ParseIndexKey(key string) (clusterUID string, number int64, digest string, ok bool) {
	name, inside := strings.CutPrefix(key, IndexesPrefix)
	parts := indexName.FindStringSubmatch(name)
	if !inside || parts == nil {
		return "", 0, "", false
	}
	if parts[3] == "" {
		if _, err := fmt.Sscanf(parts[2], "%x", &number); err != nil {
			return "", 0, "", false
		}
	}
	return parts[1], number, parts[3], true
}

// EncodeIndexHead gives the content of a head, signed by a cluster, and with what is newer
// than its segments.
func EncodeIndexHead(head IndexHead, newest []byte, cluster Cluster) ([]byte, error) {
	if cluster.Key == nil || cluster.UID == "" {
		return nil, errors.New("the cluster has no key to sign with, or no uid")
	}
	stored := storedIndexHead{
		TypeMeta: metav1.TypeMeta{APIVersion: indexAPIVersion, Kind: indexKind},
		Metadata: storedIndexMetadata{Annotations: map[string]string{AnnotationClusterUID: cluster.UID, AnnotationPublicKey: cluster.Key.PublicKey()}},
		Spec:     storedIndexSpec{Segments: head.Segments, Boundaries: head.Boundaries, Newest: NewContent(newest)},
	}
	plain, err := json.Marshal(stored)
	if err != nil {
		return nil, err
	}
	if stored.Metadata.Annotations[AnnotationSignature], err = cluster.Key.sign(plain); err != nil {
		return nil, err
	}
	data, err := json.Marshal(stored)
	if err != nil {
		return nil, err
	}
	line := len(data)
	data = append(append(data, '\n'), newest...)
	if line > maxIndexDocumentBytes || len(data) > MaxIndexHeadBytes || len(head.Segments) > MaxIndexSegments {
		return nil, fmt.Errorf("the head of the index has %d bytes, %d of them in its first line, and %d segments, which is more than is read", len(data), line, len(head.Segments))
	}
	return data, nil
}

// DecodeIndexHead reads a head of a cluster's index, and what is newer than its segments. It
// fails if that is not as it was signed.
func DecodeIndexHead(data []byte, clusterUID string) (head *IndexHead, newest []byte, err error) {
	line, newest, found := bytes.Cut(data, []byte("\n"))
	if !found || len(line) > maxIndexDocumentBytes || len(data) > MaxIndexHeadBytes {
		return nil, nil, errors.New("it is not the head of an index")
	}
	canonical, err := verify(line)
	if err != nil {
		return nil, nil, err
	}
	stored := &storedIndexHead{}
	if err := utiljson.Unmarshal(canonical, stored); err != nil {
		return nil, nil, err
	}
	annotations := stored.Metadata.Annotations
	switch {
	case stored.APIVersion != indexAPIVersion || stored.Kind != indexKind:
		return nil, nil, fmt.Errorf("it is of kind %q in %q", stored.Kind, stored.APIVersion)
	case annotations[AnnotationClusterUID] != clusterUID:
		return nil, nil, fmt.Errorf("it is of the cluster %q", annotations[AnnotationClusterUID])
	case NewContent(newest) != stored.Spec.Newest:
		return nil, nil, errors.New("what follows is not what was signed")
	case len(stored.Spec.Segments) > MaxIndexSegments:
		return nil, nil, fmt.Errorf("it has %d segments", len(stored.Spec.Segments))
	}
	for _, segment := range stored.Spec.Segments {
		if _, _, _, ok := ParseIndexKey(IndexSegmentKey(clusterUID, segment.SHA256)); !ok {
			return nil, nil, fmt.Errorf("%q is not the name of a segment", segment.SHA256)
		}
	}
	return &IndexHead{
		ClusterUID: clusterUID, PublicKey: annotations[AnnotationPublicKey], Segments: stored.Spec.Segments, Boundaries: stored.Spec.Boundaries,
	}, newest, nil
}

// NewIndexSegment describes a segment.
func NewIndexSegment(data []byte, entries, rows int) IndexSegment {
	sum := sha256.Sum256(data)
	return IndexSegment{SHA256: hex.EncodeToString(sum[:]), Size: int64(len(data)), Entries: int64(entries), Rows: int64(rows)}
}

// Bears reports whether the content of the object is the one that the head has named.
func (s IndexSegment) Bears(data []byte) bool {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]) == s.SHA256
}
