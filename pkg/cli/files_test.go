// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	holdfastclientset "github.com/holdfast-io/holdfast/pkg/generated/holdfast/clientset/versioned"
)

// fakeVolume answers as volumebackups/files and volumebackups/content do. It may be hostile.
type fakeVolume struct {
	folders  map[string][]v1alpha1.VolumeFile
	contents map[string]string
	links    map[string]string
	// cut ends an answer after so many bytes, as kube-apiserver does after a minute; away refuses
	// those behind so many bytes.
	cut, away int
	requests  atomic.Int64
}

const modified = "2020-02-03T04:05:06.123456789Z"

func entry(name string, kind v1alpha1.VolumeFileType, size int) v1alpha1.VolumeFile {
	mode := map[v1alpha1.VolumeFileType]string{v1alpha1.VolumeFileTypeFile: "4640", v1alpha1.VolumeFileTypeFolder: "2750", v1alpha1.VolumeFileTypeLink: "0777"}[kind]
	return v1alpha1.VolumeFile{Name: name, Type: kind, SizeBytes: int64(size), Mode: mode, ModificationTime: modified}
}

func (f *fakeVolume) find(at string) (v1alpha1.VolumeFile, bool) {
	if content, ok := f.contents[at]; ok {
		return entry(filepath.Base(at), v1alpha1.VolumeFileTypeFile, len(content)), true
	}
	if _, ok := f.links[at]; ok {
		return entry(filepath.Base(at), v1alpha1.VolumeFileTypeLink, 0), true
	}
	_, ok := f.folders[at]
	return entry(filepath.Base(at), v1alpha1.VolumeFileTypeFolder, 0), ok
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: "refused"})
}

func (f *fakeVolume) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.requests.Add(1)
	at, query := r.URL.Query().Get("path"), r.URL.Query()
	of, ok := f.find(at)
	if !ok {
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	}
	if strings.HasSuffix(r.URL.Path, "/files") {
		list := v1alpha1.VolumeFileList{Path: at, File: of}
		from, _ := strconv.Atoi(query.Get("continue"))
		limit, _ := strconv.Atoi(query.Get("limit"))
		all := f.folders[at]
		end := min(from+min(limit, 2), len(all))
		if list.Items = all[from:end]; end < len(all) {
			list.Continue = strconv.Itoa(end)
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(list)
		return
	}
	if query.Get("link") == "true" {
		_, _ = w.Write([]byte(f.links[at]))
		return
	}
	offset, _ := strconv.Atoi(query.Get("offset"))
	content := f.contents[at][offset:]
	if f.away > 0 && offset >= f.away {
		refuse(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)
		return
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(content)))
	if f.cut > 0 && len(content) > f.cut {
		_, _ = w.Write([]byte(content[:f.cut]))
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	_, _ = w.Write([]byte(content))
}

func (f *fakeVolume) files(t *testing.T) *volumeFiles {
	t.Helper()
	patience, retry := contentPatience, contentRetry
	t.Cleanup(func() { contentPatience, contentRetry = patience, retry })
	contentPatience, contentRetry = 20*time.Millisecond, time.Millisecond
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	client, err := holdfastclientset.NewForConfig(&rest.Config{Host: server.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	return &volumeFiles{client.HoldfastV1alpha1().RESTClient(), "shop", "nightly:data"}
}

// TestContentIsComplete: an answer that is cut is continued where it ended, and what stays incomplete
// is an error.
func TestContentIsComplete(t *testing.T) {
	content := strings.Repeat("0123456789", 100_000)
	volume := &fakeVolume{contents: map[string]string{"/a": content, "/empty": ""}, cut: 300_000}
	files := volume.files(t)
	var got bytes.Buffer
	if err := files.content(t.Context(), "/a", int64(len(content)), &got); err != nil || got.String() != content {
		t.Errorf("%d bytes of %d, %v", got.Len(), len(content), err)
	}
	if n := volume.requests.Load(); n != 4 {
		t.Errorf("it took %d requests", n)
	}
	if err := files.content(t.Context(), "/empty", 0, &got); err != nil {
		t.Error(err)
	}
	for _, size := range []int{len(content) - 1, len(content) + 1} {
		if err := files.content(t.Context(), "/a", int64(size), &got); err == nil || !strings.Contains(err.Error(), "not complete") {
			t.Errorf("of another size it ends with %v", err)
		}
	}
	volume.away = 500_000
	got.Reset()
	if err := files.content(t.Context(), "/a", int64(len(content)), &got); err == nil || !strings.Contains(err.Error(), "broke off after 600000 of 1000000 bytes, and is not complete") {
		t.Errorf("without its store it ends with %v", err)
	}
	before := volume.requests.Load()
	if err := files.content(t.Context(), "/absent", 5, &got); err == nil || volume.requests.Load() != before+1 {
		t.Errorf("what is refused is requested %d times: %v", volume.requests.Load()-before, err)
	}
	closed := errors.New("the pipe is closed")
	if err := files.content(t.Context(), "/a", int64(len(content)), failingWriter{closed}); !errors.Is(err, closed) {
		t.Errorf("an output that fails: %v", err)
	}
}

type failingWriter struct{ error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.error }

func copyOf(t *testing.T, f *fakeVolume, overwrite bool, at, local string) (c *copying, stderr string, err error) {
	t.Helper()
	var problems bytes.Buffer
	c = &copying{tool: &tool{IOStreams: genericiooptions.IOStreams{ErrOut: &problems}}, files: f.files(t), overwrite: overwrite}
	err = c.run(t.Context(), at, local)
	return c, problems.String(), err
}

// TestCopyKeepsWhatItCan: contents, permissions, times and the links that stay inside.
func TestCopyKeepsWhatItCan(t *testing.T) {
	file, folder, link := v1alpha1.VolumeFileTypeFile, v1alpha1.VolumeFileTypeFolder, v1alpha1.VolumeFileTypeLink
	volume := &fakeVolume{
		folders: map[string][]v1alpha1.VolumeFile{
			"/":         {entry("sub", folder, 0), entry("a", file, 5), entry("b\n\u202e", file, 2), entry("in", link, 0), entry("out", link, 0), entry("pipe", v1alpha1.VolumeFileTypeOther, 0)},
			"/sub":      {entry("deep", folder, 0), entry("up", link, 0), entry("far", link, 0)},
			"/sub/deep": {entry("c", file, 1)},
		},
		contents: map[string]string{"/a": "hello", "/b\n\u202e": "no", "/sub/deep/c": "c"},
		links:    map[string]string{"/in": "sub/deep", "/out": "/etc/passwd", "/sub/up": "../a", "/sub/far": "../../a"},
	}
	to := filepath.Join(t.TempDir(), "copy")
	c, stderr, err := copyOf(t, volume, false, "/", to)
	if err != nil || c.copied != 3 || c.bytes != 8 || c.leftOut != 3 {
		t.Fatalf("%d files with %d bytes, %d left out, %v", c.copied, c.bytes, c.leftOut, err)
	}
	for _, text := range []string{"/out is left out", "/sub/far is left out", "/pipe is left out"} {
		if !strings.Contains(stderr, text) {
			t.Errorf("it says %q", stderr)
		}
	}
	at, _ := time.Parse(time.RFC3339Nano, modified)
	for name, mode := range map[string]os.FileMode{"": os.ModeDir | 0o750, "a": 0o640, "b\n\u202e": 0o640, "sub": os.ModeDir | 0o750, "sub/deep": os.ModeDir | 0o750, "sub/deep/c": 0o640} {
		info, err := os.Lstat(filepath.Join(to, name))
		if err != nil || info.Mode() != mode || !info.ModTime().Equal(at) {
			t.Errorf("%q is %v, %v", name, info, err)
		}
	}
	for name, target := range map[string]string{"in": "sub/deep", "sub/up": "../a"} {
		if got, err := os.Readlink(filepath.Join(to, name)); got != target || err != nil {
			t.Errorf("the link %q leads to %q, %v", name, got, err)
		}
	}
	// Into an existing folder, by its name, and once more.
	into := t.TempDir()
	for _, overwrite := range []bool{false, true} {
		if _, _, err := copyOf(t, volume, overwrite, "/sub", into); err != nil {
			t.Errorf("overwrite: %t: %v", overwrite, err)
		}
	}
	if _, _, err := copyOf(t, volume, false, "/sub", into); err == nil || !strings.Contains(err.Error(), "exists") {
		t.Errorf("once more: %v", err)
	}
	if content, err := os.ReadFile(filepath.Join(into, "sub/deep/c")); err != nil || string(content) != "c" {
		t.Errorf("%q, %v", content, err)
	}
	// A file, under its own name and another.
	if _, _, err := copyOf(t, volume, false, "/a", into); err != nil {
		t.Error(err)
	}
	if _, _, err := copyOf(t, volume, false, "/a", filepath.Join(into, "another")); err != nil {
		t.Error(err)
	}
	if _, _, err := copyOf(t, volume, false, "/in", into); err == nil || !strings.Contains(err.Error(), "symbolic link") {
		t.Errorf("a link: %v", err)
	}
	if _, _, err := copyOf(t, volume, false, "/sub", filepath.Join(into, "a")); err == nil || !strings.Contains(err.Error(), "no folder") {
		t.Errorf("a folder over a file: %v", err)
	}
}

// TestCopyStaysInItsFolder: neither a name, a link, nor what is there already leads a write out of the
// folder, and a file that was not complete leaves nothing.
func TestCopyStaysInItsFolder(t *testing.T) {
	file, folder, link := v1alpha1.VolumeFileTypeFile, v1alpha1.VolumeFileTypeFolder, v1alpha1.VolumeFileTypeLink
	outside := t.TempDir()
	for name, test := range map[string]struct {
		items   []v1alpha1.VolumeFile
		links   map[string]string
		prepare func(to string) error
		text    string
	}{
		"up":                    {items: []v1alpha1.VolumeFile{entry("..", file, 1)}, text: "can't be the name"},
		"a path":                {items: []v1alpha1.VolumeFile{entry("../x", file, 1)}, text: "can't be the name"},
		"an absolute path":      {items: []v1alpha1.VolumeFile{entry(outside+"/x", file, 1)}, text: "can't be the name"},
		"no name":               {items: []v1alpha1.VolumeFile{entry("", folder, 0)}, text: "can't be the name"},
		"a zero byte":           {items: []v1alpha1.VolumeFile{entry("a\x00b", file, 1)}, text: "can't be the name"},
		"a link, then a folder": {items: []v1alpha1.VolumeFile{entry("l", link, 0), entry("l", folder, 0)}, links: map[string]string{"/l": "."}, text: "no folder"},
		"a link, then a file":   {items: []v1alpha1.VolumeFile{entry("l", link, 0), entry("l", file, 1)}, links: map[string]string{"/l": "x"}, text: "exists"},
		"a link that is there":  {items: []v1alpha1.VolumeFile{entry("sub", folder, 0)}, prepare: func(to string) error { return os.Symlink(outside, filepath.Join(to, "sub")) }, text: "no folder"},
		"a file that is cut":    {items: []v1alpha1.VolumeFile{entry("cut", file, 9)}, text: "not complete"},
		"a mode that is none":   {items: []v1alpha1.VolumeFile{{Name: "x", Type: file, SizeBytes: 1, Mode: "rwx", ModificationTime: modified}}, text: "mode"},
		"a time that is none":   {items: []v1alpha1.VolumeFile{{Name: "x", Type: file, SizeBytes: 1, Mode: "0644", ModificationTime: "now"}}, text: "time"},
	} {
		t.Run(name, func(t *testing.T) {
			volume := &fakeVolume{folders: map[string][]v1alpha1.VolumeFile{"/": test.items, "/sub": {entry("x", file, 1)}, "/l": {entry("x", file, 1)}},
				contents: map[string]string{"/x": "x", "/cut": "x", "/sub/x": "x", "/l/x": "x"}, links: test.links}
			to := t.TempDir()
			if test.prepare != nil {
				if err := test.prepare(to); err != nil {
					t.Fatal(err)
				}
			}
			if _, _, err := copyOf(t, volume, false, "/", to); err == nil || !strings.Contains(err.Error(), test.text) {
				t.Errorf("it ends with %v", err)
			}
			left, err := os.ReadDir(to)
			if err != nil {
				t.Fatal(err)
			}
			for _, of := range left {
				if of.Type().IsRegular() {
					t.Errorf("it has left %s", of)
				}
			}
		})
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Errorf("outside is %v, %v", left, err)
	}
}

// TestLinksThatStayInside: only a link that can't lead out, also through other links, is one.
func TestLinksThatStayInside(t *testing.T) {
	for _, test := range []struct {
		link, target string
		want         bool
	}{
		{"l", "a", true}, {"l", "a/b/", true}, {"l", ".", true}, {"l", "./a", true}, {"p/q/l", "../../a", true}, {"p/q/l", "../..", true},
		{"l", "..", false}, {"l", "../a", false}, {"p/l", "../../a", false}, {"l", "/a", false}, {"l", "", false},
		{"l", "a/../b", false}, {"l", "a/../../b", false}, {"p/l", "../a/..", false}, {"l", `a\..\..`, false}, {"l", "a\x00b", false},
	} {
		if got := staysInside(test.link, test.target); got != test.want {
			t.Errorf("%q to %q: %t", test.link, test.target, got)
		}
	}
}

// TestNamesOfFiles: a volume backup's name has colons, and a path begins with a slash.
func TestNamesOfFiles(t *testing.T) {
	for _, bad := range []string{"", ":/a", "a/b", "x:a/b"} {
		if _, _, err := (&tool{}).filesAt(bad); err == nil || !strings.Contains(err.Error(), "VOLUMEBACKUP:/PATH") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if got := printable("a\x1b[31m\u202eb"); got != `"a\x1b[31m\u202eb"` || printable("ünï 漢") != "ünï 漢" || printable("\xff") != `"\xff"` {
		t.Errorf("printed are %s", got)
	}
	var out bytes.Buffer
	t1 := &tool{IOStreams: genericiooptions.IOStreams{Out: &out}}
	for _, format := range []string{"", "name", "json"} {
		if err := t1.printFile(new(entry("a\x1b", v1alpha1.VolumeFileTypeFolder, 7)), "/x/a\x1b", format); err != nil {
			t.Fatal(err)
		}
	}
	if lines := strings.Split(out.String(), "\n"); !slices.Contains(lines, fmt.Sprintf(`d2750 %5d %5d %12d 2020-02-03T04:05:06Z "a\x1b"/`, 0, 0, 7)) || !slices.Contains(lines, `"/x/a\x1b"`) || strings.Contains(out.String(), "\x1b") {
		t.Errorf("printed is %q", out.String())
	}
}
