// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package longhorntest

import (
	"context"
	"crypto/sha512"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-io/holdfast/pkg/longhorn"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// VolumeConfig is the library's volume.cfg.
type VolumeConfig struct {
	Name                 string
	Size                 int64 `json:",string"`
	Labels               map[string]string
	CreatedTime          string
	LastBackupName       string
	LastBackupAt         string
	BlockCount           int64  `json:",string"`
	BackingImageName     string `json:",string"`
	BackingImageChecksum string `json:",string"`
	CompressionMethod    string `json:",string"`
	StorageClassName     string `json:",string"`
	DataEngine           string `json:",string"`
}

// BackupConfig is the library's file of a backup.
type BackupConfig struct {
	Name                  string
	VolumeName            string
	SnapshotName          string
	SnapshotCreatedAt     string
	CreatedTime           string
	Size                  int64 `json:",string"`
	Labels                map[string]string
	Parameters            map[string]string
	IsIncremental         bool
	CompressionMethod     string
	NewlyUploadedDataSize int64 `json:",string"`
	ReUploadedDataSize    int64 `json:",string"`
	ProcessingBlocks      *struct{}
	Blocks                []BlockConfig `json:",omitempty"`
	SingleFile            struct{ FilePath string }
}

// BlockConfig names a block.
type BlockConfig struct {
	Offset        int64
	BlockChecksum string
}

// Shape describes a store to generate.
type Shape struct {
	// Volumes have Backups each, of Blocks each.
	Volumes, Backups, Blocks int
	// WriteBlocks also writes blocks, with short content unrelated to their names.
	WriteBlocks bool
	// Namespaces may be 0: then volumes name none.
	Namespaces int
}

var start = time.Date(2026, 1, 1, 2, 0, 0, 0, time.UTC)

// VolumeName returns a generated volume's name.
func VolumeName(volume int) string {
	return fmt.Sprintf("pvc-%08x-0000-4000-8000-%012x", volume, volume)
}

// BackupName returns a generated backup's name.
func BackupName(volume, backup int) string { return fmt.Sprintf("backup-%08x%08x", backup, volume) }

// Generate writes a store of this shape.
func Generate(t testing.TB, to store.Writer, shape Shape) {
	t.Helper()
	group, ctx := errgroup.WithContext(context.Background())
	group.SetLimit(16)
	for volume := range shape.Volumes {
		group.Go(func() error { return shape.write(ctx, to, volume) })
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
}

func (s *Shape) write(ctx context.Context, to store.Writer, volume int) error {
	name := VolumeName(volume)
	put := func(key string, config any) error {
		data, err := json.Marshal(config)
		if err != nil {
			return err
		}
		return to.Put(ctx, key, data)
	}
	labels := map[string]string{"RecurringJob": "nightly", "longhorn.io/volume-access-mode": "rwo"}
	if s.Namespaces > 0 {
		labels["KubernetesStatus"] = fmt.Sprintf(`{"pvName":"%s","pvStatus":"Bound","namespace":"team-%d","pvcName":"data-%d","lastPVCRefAt":"","workloadsStatus":null,"lastPodRefAt":""}`,
			name, volume%s.Namespaces, volume)
	}
	config := VolumeConfig{Name: name, Size: int64(s.Blocks) * longhorn.DefaultBlockBytes, Labels: labels, CreatedTime: start.Format(time.RFC3339), CompressionMethod: "lz4", StorageClassName: "longhorn", DataEngine: "v1"}
	written := map[string]bool{}
	for backup := range s.Backups {
		at := start.AddDate(0, 0, backup).Format(time.RFC3339)
		file := BackupConfig{
			Name: BackupName(volume, backup), VolumeName: name, SnapshotName: fmt.Sprintf("nightly-%d", backup), SnapshotCreatedAt: at, CreatedTime: at,
			Size: int64(s.Blocks) * longhorn.DefaultBlockBytes, Labels: labels, Parameters: map[string]string{"backup-mode": "incremental", "backup-block-size": "2097152"},
			IsIncremental: backup > 0, CompressionMethod: "lz4", NewlyUploadedDataSize: 1 << 20, ProcessingBlocks: &struct{}{},
		}
		for block := range s.Blocks {
			// One block of each backup is its own, the others are the first backup's.
			content := fmt.Sprintf("%d of %s", block, name)
			if block == 0 {
				content += fmt.Sprintf(" in %d", backup)
			}
			sum := sha512.Sum512([]byte(content))
			checksum := longhorn.Checksum(sum[:32])
			file.Blocks = append(file.Blocks, BlockConfig{Offset: int64(block) * longhorn.DefaultBlockBytes, BlockChecksum: hex.EncodeToString(checksum[:])})
			if key := longhorn.BlockKey(longhorn.BlocksPrefix(name), checksum); !written[key] {
				written[key] = true
				if s.WriteBlocks {
					if err := to.Put(ctx, key, []byte(content)); err != nil {
						return err
					}
				}
			}
		}
		if err := put(longhorn.BackupKey(name, file.Name), file); err != nil {
			return err
		}
		config.LastBackupName, config.LastBackupAt, config.BlockCount = file.Name, at, int64(len(written))
	}
	return put(longhorn.VolumeKey(name), config)
}
