// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"
	"unsafe"

	"github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/object"
	"github.com/kopia/kopia/snapshot"
)

// Most folders are unchanged since the last snapshot, and decoding and encoding their entries takes
// as long as listing their files. So a folder without subfolders is compared before Kopia's
// uploader visits it. If its listing would equal the last byte for byte, that object is used again.
// It has each file's name, type, mode, size, time and owner, as the uploader compares. Otherwise
// the uploader continues with the entries listed so far.

type lastSnapshot struct {
	repository repo.Repository
	progress   *Progress
	// files and bytes of the reused listings include links.
	files, bytes atomic.Int64
}

func (d *volumeDir) relyOn(r repo.Repository, last *snapshot.Manifest, p *Progress) {
	d.volume.last = &lastSnapshot{repository: r, progress: p}
	d.stored = last.RootObjectID()
}

func (l *lastSnapshot) addTo(stats *snapshot.Stats) {
	if l != nil {
		stats.CachedFiles += int32(l.files.Load())
		stats.TotalFileSize += l.bytes.Load()
	}
}

// longestListing bounds a compared listing, some 20,000 files: each folder in work may hold one.
var longestListing int64 = 4 << 20

// DirEntryOrNil is called by Kopia's uploader before it lists a folder (snapshot.HasDirEntryOrNil).
// It ignores errors, as the uploader meets them again. The uploader verifies the returned object.
func (d *volumeDir) DirEntryOrNil(ctx context.Context) (*snapshot.DirEntry, error) {
	if d.in != nil {
		d.stored = d.in.folders[d.name]
	}
	if d.stored == object.EmptyID || ctx.Err() != nil {
		return nil, nil
	}
	last := d.volume.last
	content, err := last.repository.OpenObject(ctx, d.stored)
	if err != nil {
		return nil, nil
	}
	defer content.Close()
	if content.Length() > longestListing {
		d.folders = foldersOf(ctx, content)
		return nil, nil
	}
	bytes := make([]byte, content.Length())
	if _, err := io.ReadFull(content, bytes); err != nil {
		return nil, nil
	}
	listing := unsafe.String(unsafe.SliceData(bytes), len(bytes)) // the bytes never change
	files, end, ok := cutListing(listing)
	if !ok {
		d.folders = foldersOf(ctx, strings.NewReader(listing))
		return nil, nil
	}
	count := len(files)
	summary, size, ok := d.compare(ctx, files)
	if !ok || listingEnd(summary) != end { // for instance, it lacks what could not be stored
		return nil, nil
	}
	d.Close()
	last.files.Add(int64(count))
	last.bytes.Add(size)
	last.progress.Add(size)
	last.progress.addFiles(int64(count))
	return &snapshot.DirEntry{
		Name:        d.name,
		Type:        snapshot.EntryTypeDirectory,
		Permissions: snapshot.Permissions(d.mode & fs.ModBits),
		ModTime:     fs.UTCTimestampFromTime(d.ModTime()),
		UserID:      d.owner.UserID,
		GroupID:     d.owner.GroupID,
		ObjectID:    d.stored,
		DirSummary:  summary,
	}, nil
}

// Kopia's listing: entries, folders first, each with an object, and a summary.
const (
	listingBegin   = `{"stream":"kopia:directory","entries":[`
	entryBegin     = `{"name":`
	entryObject    = `,"obj":"`
	listingSummary = `],"summary":`
)

// cutListing returns the text of each file before its object, and the listing's end. It is not ok
// with folders, or without entries.
func cutListing(listing string) (files map[string]string, end string, ok bool) {
	rest, ok := strings.CutPrefix(listing, listingBegin)
	files = make(map[string]string, len(listing)/160)
	for ok {
		// A quotation mark in a name is escaped, so this matches no name.
		entry, after, hasObject := strings.Cut(rest, entryObject)
		id, after, hasEnd := strings.Cut(after, `"}`)
		if !hasObject || !hasEnd || files[entry] != "" || !strings.HasPrefix(entry, entryBegin) || strings.Contains(id, `"`) {
			return nil, "", false
		}
		files[entry] = entry
		if end, ok = strings.CutPrefix(after, listingSummary); ok {
			return files, end, true
		}
		rest, ok = strings.CutPrefix(after, ",")
	}
	return nil, "", false
}

func listingEnd(summary *fs.DirectorySummary) string {
	end, _ := json.Marshal(summary) // never fails
	return string(end) + "}\n"
}

// mostFolders bounds the subfolders with used listings, some 15 MB. Files below larger folders are
// decided one by one.
var mostFolders = 100_000

// foldersOf returns the objects of a listing's folders by name, as far as readable; none beyond
// mostFolders.
func foldersOf(ctx context.Context, listing io.Reader) map[string]object.ID {
	decoder := json.NewDecoder(listing)
	for _, want := range []json.Token{json.Delim('{'), "stream", "kopia:directory", "entries", json.Delim('[')} {
		if token, err := decoder.Token(); err != nil || token != want {
			return nil
		}
	}
	folders := map[string]object.ID{}
	for decoder.More() {
		var entry struct {
			Name     string             `json:"name"`
			Type     snapshot.EntryType `json:"type"`
			ObjectID object.ID          `json:"obj"`
		}
		if err := decoder.Decode(&entry); err != nil || entry.Type != snapshot.EntryTypeDirectory {
			break
		}
		if len(folders) == mostFolders || ctx.Err() != nil {
			return nil
		}
		folders[entry.Name] = entry.ObjectID
	}
	return folders
}

// compare lists a folder while its files are unchanged, deleting them from files. If all match, it
// returns their summary and bytes.
func (d *volumeDir) compare(ctx context.Context, files map[string]string) (summary *fs.DirectorySummary, bytes int64, same bool) {
	it, err := d.open()
	if err != nil {
		return nil, 0, false
	}
	d.begun = it
	summary = &fs.DirectorySummary{TotalDirCount: 1}
	text := make([]byte, 0, 512)
	for {
		if ctx.Err() != nil {
			return nil, 0, false
		}
		name, stat, err := it.listed()
		if err != nil {
			it.failure = err
			return nil, 0, false
		}
		if name == "" {
			if it.failure = it.ended(); it.failure != nil {
				return nil, 0, false
			}
			return summary, bytes, len(files) == 0
		}
		e := newVolumeEntry(d.volume, d, name, &stat)
		text = e.appendStored(text[:0])
		entry, known := files[string(text)]
		if !known || e.recent {
			it.ahead, it.aheadStat = name, stat
			return nil, 0, false
		}
		delete(files, entry)
		if err := d.volume.observe(it.handle, name, d.path, it.space.names[:], &stat); err != nil {
			it.failure = err
			return nil, 0, false
		}
		it.seen = append(it.seen, e)
		bytes += e.size
		if e.mode.IsRegular() {
			summary.TotalFileCount++
			summary.TotalFileSize += e.size
		} else {
			summary.TotalSymlinkCount++
		}
		summary.MaxModTime = max(summary.MaxModTime, fs.UTCTimestampFromTime(e.ModTime()))
	}
}

// appendStored appends a file's or link's text in Kopia's listings before its object; nothing if a
// listing can't hold it exactly.
func (e *volumeEntry) appendStored(b []byte) []byte {
	at := fs.UTCTimestampFromTime(e.ModTime())
	if !utf8.ValidString(e.name) || len(e.in.path)+1+len(e.name) > longestPath {
		return b
	}
	kind := snapshot.EntryTypeFile
	switch e.mode.Type() {
	case 0:
	case os.ModeSymlink:
		kind = snapshot.EntryTypeSymlink
	default:
		return b
	}
	b = append(b, entryBegin...)
	b = appendName(b, e.name)
	b = append(append(append(b, `,"type":"`...), kind...), '"')
	if bits := e.mode & fs.ModBits; bits != 0 {
		b = append(strconv.AppendUint(append(b, `,"mode":"0`...), uint64(bits), 8), '"')
	}
	if e.size != 0 {
		b = strconv.AppendInt(append(b, `,"size":`...), e.size, 10)
	}
	if at != 0 {
		b = append(at.ToTime().UTC().AppendFormat(append(b, `,"mtime":"`...), time.RFC3339Nano), '"')
	}
	if e.owner.UserID != 0 {
		b = strconv.AppendUint(append(b, `,"uid":`...), uint64(e.owner.UserID), 10)
	}
	if e.owner.GroupID != 0 {
		b = strconv.AppendUint(append(b, `,"gid":`...), uint64(e.owner.GroupID), 10)
	}
	return b
}

func appendName(b []byte, name string) []byte {
	for _, c := range []byte(name) {
		if c < ' ' || c > '~' || strings.IndexByte(`"\<>&`, c) >= 0 {
			quoted, _ := json.Marshal(name) // never fails
			return append(b, quoted...)
		}
	}
	return append(append(append(b, '"'), name...), '"')
}

var _ snapshot.HasDirEntryOrNil = (*volumeDir)(nil)
