// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restorewait

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

const uid = types.UID("uid-of-web")

// kubelet makes the emptyDir of a pod, and returns the folder of all pods and that.
func kubelet(t *testing.T) (podsDir, dir string) {
	t.Helper()
	podsDir = t.TempDir()
	dir = filepath.Join(podsDir, string(uid), "volumes", "kubernetes.io~empty-dir", VolumeName)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return podsDir, dir
}

func tell(t *testing.T, podsDir, volume, failure string) {
	t.Helper()
	if err := Tell(podsDir, uid, VolumeName, volume, failure); err != nil {
		t.Fatal(err)
	}
}

// TestWait: the pod starts when all of its volumes are complete, and not before.
func TestWait(t *testing.T) {
	podsDir, dir := kubelet(t)
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		var ended error
		done := make(chan struct{})
		go func() {
			defer close(done)
			ended = Waiting{Dir: dir, Volumes: []string{"data", "logs"}, Timeout: time.Hour, Clock: clock.RealClock{}, Out: &out}.Wait(t.Context())
		}()
		waits := func(forHowLong time.Duration) {
			time.Sleep(forHowLong)
			select {
			case <-done:
				t.Fatalf("it has ended: %v", ended)
			default:
			}
		}
		waits(10 * time.Minute)
		tell(t, podsDir, "data", "")
		// What is not known is no answer: half a line, or a file of another version.
		if err := os.WriteFile(filepath.Join(dir, "logs"), []byte("comp"), 0o600); err != nil {
			t.Fatal(err)
		}
		waits(10 * time.Minute)
		tell(t, podsDir, "logs", "")
		time.Sleep(lookInterval)
		<-done
		if want := "waiting for the restore of volumes: data, logs\nwaiting for the restore of volumes: logs\n"; ended != nil || out.String() != want {
			t.Errorf("got %v, and it said %q", ended, out.String())
		}
	})
}

// TestWaitGivesUp: with a message, and in the end always.
func TestWaitGivesUp(t *testing.T) {
	podsDir, dir := kubelet(t)
	tell(t, podsDir, "data", "")
	wait := func(ctx context.Context, dir string) error {
		return Waiting{Dir: dir, Volumes: []string{"data", "logs"}, Timeout: time.Hour, Clock: clock.RealClock{}, Out: &bytes.Buffer{}}.Wait(ctx)
	}
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		err := wait(t.Context(), dir)
		if err == nil || !strings.Contains(err.Error(), "gave up after 1h0m0s: these volumes were not restored: logs") || time.Since(begin) > time.Hour+time.Minute {
			t.Errorf("after %s: %v", time.Since(begin), err)
		}
		stopped, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := wait(stopped, dir); err == nil || !strings.Contains(err.Error(), "told to stop") {
			t.Errorf("stopped: %v", err)
		}
	})
	tell(t, podsDir, "logs", "the store is gone")
	if err := wait(t.Context(), dir); err == nil || err.Error() != "volume logs could not be restored: the store is gone" {
		t.Errorf("got %v", err)
	}
	if err := wait(t.Context(), filepath.Join(dir, "none")); err == nil {
		t.Error("without its folder it has ended well")
	}
}

// TestTell: what is said last counts, but a volume that was complete stays so, and why one
// failed stays known.
func TestTell(t *testing.T) {
	podsDir, dir := kubelet(t)
	says := func(want string) {
		t.Helper()
		content, err := os.ReadFile(filepath.Join(dir, "data"))
		if err != nil || string(content) != want+"\n" {
			t.Errorf("it says %q, %v; want %q", content, err, want)
		}
	}
	tell(t, podsDir, "data", GivenUp)
	says("failed: " + GivenUp)
	tell(t, podsDir, "data", "no")
	tell(t, podsDir, "data", "no, again")
	tell(t, podsDir, "data", GivenUp)
	says("failed: no, again")
	// One that was killed in the middle of it has left this.
	if err := os.WriteFile(filepath.Join(dir, ".data"), []byte("com"), 0o600); err != nil {
		t.Fatal(err)
	}
	tell(t, podsDir, "data", "")
	says("complete")
	tell(t, podsDir, "data", "an old record")
	says("complete")
	before, err := os.Stat(filepath.Join(dir, "data"))
	if err != nil {
		t.Fatal(err)
	}
	tell(t, podsDir, "data", "")
	after, err := os.Stat(filepath.Join(dir, "data"))
	if err != nil || !os.SameFile(before, after) || after.Mode() != 0o644 {
		t.Errorf("it was said again for nothing, or can't be read by anybody: %v, %v", after.Mode(), err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("there are %v, %v", entries, err)
	}
}

// TestTellWhom: a pod that is gone needs no telling, one whose emptyDir is not there yet
// does later, and names that lead elsewhere are refused.
func TestTellWhom(t *testing.T) {
	podsDir, _ := kubelet(t)
	for name, test := range map[string]struct {
		pod          types.UID
		wait, volume string
		fails        bool
	}{
		"gone":                    {"another", VolumeName, "data", false},
		"not yet":                 {uid, "other", "data", true},
		"no uid":                  {"", VolumeName, "data", true},
		"up, by the pod":          {"..", VolumeName, "data", true},
		"elsewhere, by the pod":   {"../" + uid, VolumeName, "data", true},
		"up, by the emptyDir":     {uid, "..", "data", true},
		"up, by the volume":       {uid, VolumeName, "..", true},
		"deeper, by the volume":   {uid, VolumeName, "a/b", true},
		"hidden":                  {uid, VolumeName, ".data", true},
		"no volume":               {uid, VolumeName, "", true},
		"another plugin's volume": {uid, "../kubernetes.io~csi", "data", true},
	} {
		if err := Tell(podsDir, test.pod, test.wait, test.volume, ""); (err != nil) != test.fails {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// TestTellStaysInside: whatever somebody has put into the emptyDir, nothing outside of
// it is read or written, and nobody is held up.
func TestTellStaysInside(t *testing.T) {
	podsDir, dir := kubelet(t)
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("of the node\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	traps := map[string]func(path string) error{
		"a link to a file":     func(path string) error { return os.Symlink(outside, path) },
		"a link upwards":       func(path string) error { return os.Symlink("../../../../../outside", path) },
		"a link to a new file": func(path string) error { return os.Symlink(outside+"-new", path) },
		"a further name":       func(path string) error { return os.Link(outside, path) },
		"a pipe":               func(path string) error { return syscall.Mkfifo(path, 0o666) },
		"an empty folder":      func(path string) error { return os.Mkdir(path, 0o755) },
	}
	for name, set := range traps {
		for _, at := range []string{"data", ".data"} {
			if err := set(filepath.Join(dir, at)); err != nil {
				t.Fatal(err)
			}
			err := Tell(podsDir, uid, VolumeName, "data", "")
			content, _ := os.ReadFile(outside)
			info, _ := os.Lstat(outside)
			if string(content) != "of the node\n" || info.Mode() != 0o600 {
				t.Errorf("%s at %s: outside is %q, %s", name, at, content, info.Mode())
			}
			if _, err := os.Lstat(outside + "-new"); err == nil {
				t.Errorf("%s at %s: a file was made outside", name, at)
			}
			said, _ := os.Lstat(filepath.Join(dir, "data"))
			if isFolder := name == "an empty folder" && at == "data"; err != nil != isFolder || !isFolder && said.Mode() != fs.FileMode(0o644) {
				t.Errorf("%s at %s: got %v", name, at, err)
			}
			for _, leftover := range []string{"data", ".data"} {
				os.Remove(filepath.Join(dir, leftover))
			}
		}
	}
}
