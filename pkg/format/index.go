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

// A cluster's index has the contents of a location's backups in a few objects: docs/format.md
// ("Indexes"). Segments are named by their digest, heads by increasing numbers. The newest head names
// the segments, and holds newer entries.

const (
	// MaxIndexHeadBytes and MaxIndexSegmentBytes bound objects.
	MaxIndexHeadBytes    = 16 << 20
	MaxIndexSegmentBytes = 32 << 20
	// MaxIndexSegments bounds a head's segments.
	MaxIndexSegments = 1000

	maxIndexDocumentBytes = 1 << 20
	indexKind             = "CatalogIndex"
	indexAPIVersion       = "holdfast.io/v1"
	// IndexesPrefix is the folder of all clusters' indexes.
	IndexesPrefix = HoldfastPrefix + "index/"
)

// IndexHead is an index's head.
type IndexHead struct {
	// ClusterUID and PublicKey are the signer's, for the reader to judge.
	ClusterUID, PublicKey string
	Segments              []IndexSegment
	// Boundaries are ordered store names that divide all names into about a page each: a hint.
	Boundaries []string
}

// IndexSegment is a segment as its head names it.
type IndexSegment struct {
	// SHA256 is the object's digest and name.
	SHA256  string `json:"sha256"`
	Size    int64  `json:"size"`
	Entries int64  `json:"entries"`
	Rows    int64  `json:"rows"`
}

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
	// Newest describes the rest after the line.
	Newest Content `json:"newest"`
}

// IndexPrefix returns the folder of a cluster's index.
func IndexPrefix(clusterUID string) string { return IndexesPrefix + clusterUID + "/" }

// IndexHeadKey returns a head's key; greater numbers are newer.
func IndexHeadKey(clusterUID string, number int64) string {
	return fmt.Sprintf("%shead-%016x", IndexPrefix(clusterUID), number)
}

// IndexSegmentKey returns a segment's key.
func IndexSegmentKey(clusterUID, digest string) string {
	return IndexPrefix(clusterUID) + "segment-" + digest
}

var indexName = regexp.MustCompile(`^([0-9A-Za-z-]{1,64})/(?:head-([0-7][0-9a-f]{15})|segment-([0-9a-f]{64}))$`)

// ParseIndexKey reverses IndexHeadKey and IndexSegmentKey; only segments have a digest. It is false for
// others.
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

// EncodeIndexHead encodes and signs a head with the newest entries.
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

// DecodeIndexHead reads a head and its newest entries. It fails for a wrong signature.
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

// Bears reports whether data is the named content.
func (s IndexSegment) Bears(data []byte) bool {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]) == s.SHA256
}
