// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package longhorn

import (
	"crypto/sha512"
	"encoding/hex"
	"strings"
)

const (
	// VolumesPrefix is the folder of all volumes, below two levels of folders.
	VolumesPrefix     = "backupstore/volumes/"
	ImagesPrefix      = "backupstore/backing-images/backing-images/"
	ImageBlocksPrefix = "backupstore/backing-images/blocks/"
	// SystemBackupsPrefix has backups of Longhorn's own objects.
	SystemBackupsPrefix = "backupstore/system-backups/"
	// ImagesVolume is no volume: it has the backing images' locks.
	ImagesVolume = "BACKINGIMAGE"
)

const (
	backupBeginning = "backup_"
	configEnd       = ".cfg"
	blockEnd        = ".blk"
	lockBeginning   = "lock-"
	lockEnd         = ".lck"
	maxNameBytes    = 253
)

// ValidName reports whether a volume, backup or image can have the name.
func ValidName(name string) bool {
	if len(name) < 2 || len(name) > maxNameBytes {
		return false
	}
	for i := range len(name) {
		c := name[i]
		switch {
		case 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9':
		case i > 0 && (c == '_' || c == '.' || c == '-'):
		default:
			return false
		}
	}
	return true
}

// hash is the store's hash: half of SHA-512, in hex.
func hash(text string) string {
	sum := sha512.Sum512([]byte(text))
	return hex.EncodeToString(sum[:sha512.Size/2])
}

func spread(hash string) string { return hash[:2] + "/" + hash[2:4] + "/" }

// VolumePrefix returns a volume's folder.
func VolumePrefix(volume string) string { return VolumesPrefix + spread(hash(volume)) + volume + "/" }

// VolumeShard returns a volume's first level of folders, two hex digits.
func VolumeShard(volume string) string { return hash(volume)[:2] }

// VolumeOf returns a folder's volume, or false if its name or place is wrong.
func VolumeOf(folder string) (string, bool) {
	name := strings.TrimSuffix(folder, "/")
	name = name[strings.LastIndexByte(name, '/')+1:]
	return name, ValidName(name) && name != ImagesVolume && VolumePrefix(name) == folder
}

// VolumeKey returns the key of a volume's file.
func VolumeKey(volume string) string { return VolumePrefix(volume) + "volume.cfg" }

// BackupsPrefix returns the folder of a volume's backups.
func BackupsPrefix(volume string) string { return VolumePrefix(volume) + "backups/" }

// BackupKey returns the key of a backup's file.
func BackupKey(volume, backup string) string {
	return BackupsPrefix(volume) + backupBeginning + backup + configEnd
}

// BackupOf returns a key's backup, or false.
func BackupOf(key string) (string, bool) {
	file := key[strings.LastIndexByte(key, '/')+1:]
	name, begins := strings.CutPrefix(file, backupBeginning)
	name, ends := strings.CutSuffix(name, configEnd)
	return name, begins && ends && ValidName(name)
}

// BlocksPrefix returns the folder of a volume's blocks.
func BlocksPrefix(volume string) string { return VolumePrefix(volume) + "blocks/" }

// ChecksumOf returns a block key's checksum, or false.
func ChecksumOf(key string) (Checksum, bool) {
	file, ends := strings.CutSuffix(key[strings.LastIndexByte(key, '/')+1:], blockEnd)
	var c Checksum
	if !ends || len(file) != hex.EncodedLen(len(c)) {
		return c, false
	}
	_, err := hex.Decode(c[:], []byte(file))
	return c, err == nil
}

// BlockKey returns a block's key in the folder of all blocks.
func BlockKey(blocksPrefix string, checksum Checksum) string {
	name := hex.EncodeToString(checksum[:])
	return blocksPrefix + spread(name) + name + blockEnd
}

// LocksPrefix returns the folder of a volume's locks.
func LocksPrefix(volume string) string { return VolumePrefix(volume) + "locks/" }

// LockKey returns the key of a lock's file.
func LockKey(volume, lock string) string { return LocksPrefix(volume) + lock + lockEnd }

// LockOf returns a key's lock, or false.
func LockOf(key string) (string, bool) {
	name, ends := strings.CutSuffix(key[strings.LastIndexByte(key, '/')+1:], lockEnd)
	return name, ends && strings.HasPrefix(name, lockBeginning)
}

// ImageKey returns the key of a backing image's file.
func ImageKey(image string) string { return ImagesPrefix + image + "/backing-image.cfg" }
