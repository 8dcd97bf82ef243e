// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package longhorn

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"
)

const (
	// MaxConfigBytes bounds a file, without its blocks.
	MaxConfigBytes = 256 << 10
	// Labels are users' text of any length.
	maxLabels = 256
	// DefaultBlockBytes is the default block size.
	DefaultBlockBytes = 2 << 20
)

// Volume is the content of volume.cfg.
type Volume struct {
	Name string
	// SizeBytes, Labels and the fields from StorageClass on are the newest finished backup's; Created
	// is the first's.
	SizeBytes int64
	Labels    map[string]string
	Created   time.Time
	// LastBackup may be empty or wrong despite backups.
	LastBackup, LastBackupAt string
	// Blocks is about the number of used blocks.
	Blocks                             int64
	Compression, DataEngine            string
	StorageClass                       string
	BackingImage, BackingImageChecksum string
}

// Backup is a backup's file before its blocks.
type Backup struct {
	Name, VolumeName, SnapshotName string
	SnapshotCreated                time.Time
	// Finished is false for a running or failed backup, with only the names and Compression.
	Finished bool
	Created  time.Time
	// SizeBytes counts whole blocks with data.
	SizeBytes                  int64
	Labels, Parameters         map[string]string
	Incremental                bool
	Compression                string
	NewBytes, ReuploadedBytes  int64
	snapshotCreatedAt, created string
}

// Checksum is a block's hash and name.
type Checksum [32]byte

// BlockBytes returns the block size.
func (b *Backup) BlockBytes() int64 {
	if size, err := strconv.ParseInt(b.Parameters["backup-block-size"], 10, 64); err == nil && size > 0 {
		return size
	}
	return DefaultBlockBytes
}

// Claim returns a claim's namespace and name by a volume's labels. Either may be empty: Longhorn writes
// them only for some volumes and backups.
func Claim(labels map[string]string) (namespace, claim string) {
	var status struct {
		Namespace string `json:"namespace"`
		PVCName   string `json:"pvcName"`
	}
	if json.Unmarshal([]byte(labels["KubernetesStatus"]), &status) != nil {
		return "", ""
	}
	return status.Namespace, status.PVCName
}

// ReadVolume reads volume.cfg.
func ReadVolume(r io.Reader) (*Volume, error) {
	var v Volume
	var size, blocks integer
	var compression, engine, class, image, imageChecksum quoted
	var created string
	err := readObject(r, func(key string) any {
		switch key {
		case "Name":
			return &v.Name
		case "Size":
			return &size
		case "Labels":
			return &v.Labels
		case "CreatedTime":
			return &created
		case "LastBackupName":
			return &v.LastBackup
		case "LastBackupAt":
			return &v.LastBackupAt
		case "BlockCount":
			return &blocks
		case "CompressionMethod":
			return &compression
		case "DataEngine":
			return &engine
		case "StorageClassName":
			return &class
		case "BackingImageName":
			return &image
		case "BackingImageChecksum":
			return &imageChecksum
		}
		return nil
	}, nil)
	if err != nil {
		return nil, err
	}
	if len(v.Labels) > maxLabels {
		return nil, errTooManyLabels
	}
	v.SizeBytes, v.Blocks, v.Created = int64(size), int64(blocks), instant(created)
	v.Compression, v.DataEngine, v.StorageClass = string(compression), string(engine), string(class)
	v.BackingImage, v.BackingImageChecksum = string(image), string(imageChecksum)
	if v.Compression == "" {
		v.Compression = "gzip"
	}
	if v.DataEngine == "" {
		v.DataEngine = "v1"
	}
	return &v, nil
}

// ReadBackup reads a backup's file up to its blocks, or, if block is not nil, to the end.
func ReadBackup(r io.Reader, block func(Checksum) error) (*Backup, error) {
	var b Backup
	var size, newBytes, reuploaded integer
	err := readObject(r, func(key string) any {
		switch key {
		case "Name":
			return &b.Name
		case "VolumeName":
			return &b.VolumeName
		case "SnapshotName":
			return &b.SnapshotName
		case "SnapshotCreatedAt":
			return &b.snapshotCreatedAt
		case "CreatedTime":
			return &b.created
		case "Size":
			return &size
		case "Labels":
			return &b.Labels
		case "Parameters":
			return &b.Parameters
		case "IsIncremental":
			return &b.Incremental
		case "CompressionMethod":
			return &b.Compression
		case "NewlyUploadedDataSize":
			return &newBytes
		case "ReUploadedDataSize":
			return &reuploaded
		}
		return nil
	}, blocksOf(block))
	if err != nil {
		return nil, err
	}
	if len(b.Labels) > maxLabels || len(b.Parameters) > maxLabels {
		return nil, errTooManyLabels
	}
	b.SizeBytes, b.NewBytes, b.ReuploadedBytes = int64(size), int64(newBytes), int64(reuploaded)
	b.Finished = b.created != ""
	b.Created, b.SnapshotCreated = instant(b.created), instant(b.snapshotCreatedAt)
	return &b, nil
}

// ReadImage reads a backing image's file, with blocks if block is not nil, and reports whether it is
// complete.
func ReadImage(r io.Reader, block func(Checksum) error) (complete bool, err error) {
	var completed string
	err = readObject(r, func(key string) any {
		if key == "CompleteTime" {
			return &completed
		}
		return nil
	}, blocksOf(block))
	return completed != "", err
}

var errTooManyLabels = fmt.Errorf("it has more than %d labels or parameters", maxLabels)

var errEnough = errors.New("enough was read")

func blocksOf(block func(Checksum) error) func(*json.Decoder) error {
	return func(decoder *json.Decoder) error {
		if block == nil {
			return errEnough
		}
		token, err := decoder.Token()
		if err != nil || token == nil {
			return err
		}
		if token != json.Delim('[') {
			return fmt.Errorf("its Blocks are %v and no list", token)
		}
		for decoder.More() {
			var mapping struct{ BlockChecksum string }
			if err := decoder.Decode(&mapping); err != nil {
				return err
			}
			var c Checksum
			if n, err := hex.Decode(c[:], []byte(mapping.BlockChecksum[:min(len(mapping.BlockChecksum), hex.EncodedLen(len(c)))])); err != nil || n != len(c) || len(mapping.BlockChecksum) != hex.EncodedLen(n) {
				return fmt.Errorf("it names a block %q, which can't be a checksum", mapping.BlockChecksum)
			}
			if err := block(c); err != nil {
				return err
			}
		}
		_, err = decoder.Token()
		return err
	}
}

// readObject reads a JSON object by key into the values of field; nil skips a key. blocks, if not nil,
// reads the key Blocks, which alone is unbounded.
func readObject(r io.Reader, field func(key string) any, blocks func(*json.Decoder) error) error {
	limited := &bounded{r: r, left: MaxConfigBytes}
	decoder := json.NewDecoder(limited)
	if token, err := decoder.Token(); err != nil {
		return cutShort(err)
	} else if token != json.Delim('{') {
		return fmt.Errorf("it is %v and no object of JSON", token)
	}
	for decoder.More() {
		key, err := decoder.Token()
		if err != nil {
			return cutShort(err)
		}
		if key == "Blocks" && blocks != nil {
			limited.left = -1
			err := blocks(decoder)
			if errors.Is(err, errEnough) {
				return nil
			}
			if err != nil {
				return cutShort(err)
			}
			limited.left = MaxConfigBytes
			continue
		}
		name, _ := key.(string)
		target := field(name)
		if target == nil {
			target = &json.RawMessage{}
		}
		if err := decoder.Decode(target); err != nil {
			return cutShort(err)
		}
	}
	if _, err := decoder.Token(); err != nil {
		return cutShort(err)
	}
	if _, err := decoder.Token(); err != io.EOF {
		return errors.New("something follows its end")
	}
	return nil
}

func cutShort(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// bounded fails after left bytes, unless negative.
type bounded struct {
	r    io.Reader
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, fmt.Errorf("it says more than %d bytes", MaxConfigBytes)
	}
	if b.left > 0 {
		p = p[:min(int64(len(p)), b.left)]
	}
	n, err := b.r.Read(p)
	if b.left > 0 {
		b.left -= int64(n)
	}
	return n, err
}

type integer int64

func (i *integer) UnmarshalJSON(data []byte) error {
	text := string(bytes.Trim(data, `"`))
	if text == "null" || text == "" {
		return nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return fmt.Errorf("%.40q is no size", text)
	}
	*i = integer(n)
	return nil
}

type quoted string

func (q *quoted) UnmarshalJSON(data []byte) error {
	var outer, inner string
	if err := json.Unmarshal(data, &outer); err != nil {
		return err
	}
	if json.Unmarshal([]byte(outer), &inner) != nil {
		inner = outer
	}
	*q = quoted(inner)
	return nil
}

func instant(text string) time.Time {
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}
	}
	return t.UTC()
}
