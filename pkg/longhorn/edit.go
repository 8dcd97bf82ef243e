// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package longhorn

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
)

// VolumeEdit is a deletion's change of volume.cfg. nil keeps a value.
type VolumeEdit struct {
	LastBackup, LastBackupAt *string
	Blocks                   *int64
}

// Apply changes volume.cfg, and keeps unknown keys and the order.
func (e VolumeEdit) Apply(config []byte) ([]byte, error) {
	values := map[string]string{}
	if e.LastBackup != nil {
		values["LastBackupName"] = *e.LastBackup
	}
	if e.LastBackupAt != nil {
		values["LastBackupAt"] = *e.LastBackupAt
	}
	if e.Blocks != nil {
		values["BlockCount"] = strconv.FormatInt(*e.Blocks, 10)
	}
	var keys []string
	var content []*json.RawMessage
	if err := readObject(bytes.NewReader(config), func(key string) any {
		keys, content = append(keys, key), append(content, &json.RawMessage{})
		return content[len(content)-1]
	}, nil); err != nil {
		return nil, err
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		value, err := json.Marshal(values[key])
		if err != nil {
			return nil, err
		}
		i := slices.Index(keys, key)
		if i < 0 {
			keys, content = append(keys, key), append(content, &json.RawMessage{})
			i = len(keys) - 1
		}
		*content[i] = value
	}
	var edited bytes.Buffer
	for i, key := range keys {
		name, err := json.Marshal(key)
		if err != nil {
			return nil, err
		}
		edited.WriteByte("{,"[min(i, 1)])
		edited.Write(name)
		edited.WriteByte(':')
		edited.Write(*content[i])
	}
	edited.WriteByte('}')
	return edited.Bytes(), nil
}
