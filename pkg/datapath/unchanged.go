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

// Most folders have not changed since the last snapshot. To decode what that has of each of
// their files, and to encode the same again for nothing but its hash, takes as long as to ask the
// kernel about them. So a folder that has no folders is compared before Kopia's uploader looks at
// what it holds: if its listing would be the last one, byte for byte, that is used again. It has
// of each file the name, type, mode, size, time and owner, which is what the uploader goes by,
// too. Else the uploader goes on with what was listed so far, and decides file by file.

// lastSnapshot is the one of the volume that is used again.
type lastSnapshot struct {
	repository repo.Repository
	progress   *Progress
	// files of the listings that are used again, and their bytes; links are among them.
	files, bytes atomic.Int64
}

// relyOn has what the volume's root holds compared with the last snapshot.
func (d *volumeDir) relyOn(r repo.Repository, last *snapshot.Manifest, p *Progress) {
	d.volume.last = &lastSnapshot{repository: r, progress: p}
	d.stored = last.RootObjectID()
}

// addTo adds what Kopia's uploader was not shown to what it has counted.
func (l *lastSnapshot) addTo(stats *snapshot.Stats) {
	if l != nil {
		stats.CachedFiles += int32(l.files.Load())
		stats.TotalFileSize += l.bytes.Load()
	}
}

// longestListing is how many bytes of a listing are compared at once: some 20,000 files. There
// may be one for each folder that is uploaded at once, beside the memory that these take.
var longestListing int64 = 4 << 20

// DirEntryOrNil implements snapshot.HasDirEntryOrNil: Kopia's uploader asks it of a folder before
// it looks at what that holds, and so before it asks it of the folders in it. Whatever goes wrong
// is no error here, as the uploader meets it again. It verifies the object that it gets: one
// whose contents are gone by then fails the upload, as its files' contents may be, too.
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
	listing := unsafe.String(unsafe.SliceData(bytes), len(bytes)) // nobody changes it
	files, end, ok := cutListing(listing)
	if !ok {
		d.folders = foldersOf(ctx, strings.NewReader(listing))
		return nil, nil
	}
	count := len(files)
	summary, size, ok := d.compare(ctx, files)
	if !ok || listingEnd(summary) != end { // it lacks what could not be stored, for instance
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

// How Kopia writes a listing: entries with folders first, each with an object, and a summary.
const (
	listingBegin   = `{"stream":"kopia:directory","entries":[`
	entryBegin     = `{"name":`
	entryObject    = `,"obj":"`
	listingSummary = `],"summary":`
)

// cutListing returns what a listing has of each file before its object, and what comes after all
// of them. It is not ok where there are folders, or nothing.
func cutListing(listing string) (files map[string]string, end string, ok bool) {
	rest, ok := strings.CutPrefix(listing, listingBegin)
	files = make(map[string]string, len(listing)/160)
	for ok {
		// A quotation mark in a name has a backslash before it, so this is none of a name.
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

// listingEnd is what cutListing returns for the end of a listing.
func listingEnd(summary *fs.DirectorySummary) string {
	end, _ := json.Marshal(summary) // it has nothing that can't be
	return string(end) + "}\n"
}

// mostFolders is of how many folders in one the listings are looked for: some 15 MB. The files in
// the folders of one with more are decided about one by one.
var mostFolders = 100_000

// foldersOf returns the objects of the folders in a listing, by name, as far as it can be read; none
// if they are more than mostFolders.
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

// compare lists a folder as long as there are only files that are as they were, and takes those
// from files. If it holds what they are and nothing else, it returns their summary and bytes.
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
			return nil, 0, false // the uploader sees it, too
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

// appendStored appends what Kopia's listings have of a file or link before its object, and
// nothing for what none has, or not exactly.
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

// appendName appends a name as JSON.
func appendName(b []byte, name string) []byte {
	for _, c := range []byte(name) {
		if c < ' ' || c > '~' || strings.IndexByte(`"\<>&`, c) >= 0 {
			quoted, _ := json.Marshal(name) // a string always can be
			return append(b, quoted...)
		}
	}
	return append(append(append(b, '"'), name...), '"')
}

var _ snapshot.HasDirEntryOrNil = (*volumeDir)(nil)
