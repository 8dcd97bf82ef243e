// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !race

package repository_test

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/datapath"
	"github.com/holdfast-io/holdfast/pkg/maintenance"
	"github.com/holdfast-io/holdfast/pkg/repository"
)

const (
	// environmentMaintain has a process of this test binary do nothing but maintain a
	// repository: that of a maintained, in JSON.
	environmentMaintain = "HOLDFAST_MAINTAIN"
	// environmentKopia is Kopia's own command, as TestMaintenanceHistories has it.
	environmentKopia = "HOLDFAST_KOPIA"

	benchmarkBucket = "backups"
	manyContents    = 300_000
)

// maintained is a repository for a process to maintain.
type maintained struct {
	Endpoint string
	Key      repository.Key
}

func (m maintained) location() repository.Location {
	return repository.Location{
		Spec: enginev1alpha1.StorageLocationSpec{
			Provider: enginev1alpha1.StorageProviderS3,
			S3:       &enginev1alpha1.S3Location{Bucket: benchmarkBucket, Endpoint: m.Endpoint, ForcePathStyle: true, CredentialsSecret: "credentials"},
		},
		Secret: map[string][]byte{"accessKeyID": []byte("id"), "secretAccessKey": []byte("secret")},
	}
}

// TestMaintain is the process that BenchmarkMaintenance measures.
func TestMaintain(t *testing.T) {
	given, ok := os.LookupEnv(environmentMaintain)
	if !ok {
		t.Skip("it is a part of BenchmarkMaintenance")
	}
	var m maintained
	if err := json.Unmarshal([]byte(given), &m); err != nil {
		t.Fatal(err)
	}
	cache, err := repository.NewCache(t.TempDir(), maintenance.CacheBytes)
	if err != nil {
		t.Fatal(err)
	}
	r, err := repository.Open(t.Context(), m.location(), "app", m.Key, repository.Options{Cache: cache})
	if err != nil {
		t.Fatal(err)
	}
	done, err := r.Maintain(t.Context())
	if err := errors.Join(err, r.Close(t.Context())); err != nil || done.Kind != repository.MaintenanceFull {
		t.Fatalf("a %s maintenance ended with %v", done.Kind, err)
	}
}

// BenchmarkMaintenance is the full maintenance of a repository of many contents, by us and by
// Kopia's command, each in a process of its own and of a repository that is the same.
func BenchmarkMaintenance(b *testing.B) {
	backend := s3mem.New()
	if err := backend.CreateBucket(benchmarkBucket); err != nil {
		b.Fatal(err)
	}
	var requests atomic.Int64
	fake := gofakes3.New(backend).Server()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		fake.ServeHTTP(w, r)
	}))
	defer server.Close()
	m := maintained{Endpoint: server.URL, Key: repository.NewKey()}
	if err := repository.Create(b.Context(), m.location(), "app", m.Key); err != nil {
		b.Fatal(err)
	}
	dir := b.TempDir()
	for i := range manyContents {
		folder := filepath.Join(dir, fmt.Sprint(i/1000))
		if i%1000 == 0 {
			if err := os.Mkdir(folder, 0o755); err != nil {
				b.Fatal(err)
			}
		}
		data := make([]byte, 100)
		rand.Read(data)
		if err := os.WriteFile(filepath.Join(folder, fmt.Sprint(i)), data, 0o600); err != nil {
			b.Fatal(err)
		}
	}
	r, err := repository.Open(b.Context(), m.location(), "app", m.Key, repository.Options{})
	if err != nil {
		b.Fatal(err)
	}
	_, err = datapath.Upload(b.Context(), r, datapath.UploadRequest{Path: dir, Source: datapath.Source{Namespace: "app", Pod: "pod", Volume: "data"}}, new(datapath.Progress))
	if err := errors.Join(err, r.Close(b.Context())); err != nil {
		b.Fatal(err)
	}
	var stored []gofakes3.Content
	list, err := backend.ListBucket(benchmarkBucket, nil, gofakes3.ListBucketPage{})
	if err != nil {
		b.Fatal(err)
	}
	for _, object := range list.Contents {
		stored = append(stored, *object)
	}
	before := map[string][]byte{}
	for _, object := range stored {
		before[object.Key] = content(b, backend, object.Key)
	}
	// measure runs a program, and forgets what it has done to the repository.
	measure := func(who string, command *exec.Cmd) {
		requests.Store(0)
		begun := time.Now()
		peak, err := runWatched(command)
		if err != nil {
			b.Fatalf("%s: %v", who, err)
		}
		b.ReportMetric(time.Since(begun).Seconds(), who+"-s")
		b.ReportMetric(float64(requests.Load()), who+"-requests")
		b.ReportMetric(float64(peak)/(1<<20), who+"-peak-MiB")
		reset(b, backend, before)
	}
	for b.Loop() {
		encoded, err := json.Marshal(m)
		if err != nil {
			b.Fatal(err)
		}
		ours := exec.CommandContext(b.Context(), os.Args[0], "-test.run=^TestMaintain$", "-test.count=1")
		ours.Env = append(os.Environ(), environmentMaintain+"="+string(encoded))
		measure("ours", ours)
		if kopia := os.Getenv(environmentKopia); kopia != "" {
			measure("kopia", kopiaMaintains(b, kopia, m))
		}
	}
	b.ReportMetric(0, "ns/op")
}

// runWatched runs a program to its end, and says how much memory it had at most. Source: VmHWM in
// proc_pid_status(5); what wait(2) says counts what its parent had when it was begun.
func runWatched(command *exec.Cmd) (peak int64, err error) {
	var output bytes.Buffer
	command.Stdout, command.Stderr = &output, &output
	if err := command.Start(); err != nil {
		return 0, err
	}
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	for {
		select {
		case err := <-ended:
			if err != nil {
				err = fmt.Errorf("%w\n%s", err, output.String())
			}
			return peak, err
		case <-time.After(10 * time.Millisecond):
		}
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", command.Process.Pid))
		if err != nil {
			continue // it has ended
		}
		for line := range strings.Lines(string(status)) {
			var kilobytes int64
			if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &kilobytes); err == nil {
				peak = max(peak, kilobytes<<10)
			}
		}
	}
}

// kopiaMaintains is Kopia's command for the maintenance, of a repository that it is connected to.
func kopiaMaintains(b *testing.B, program string, m maintained) *exec.Cmd {
	b.Helper()
	endpoint, err := url.Parse(m.Endpoint)
	if err != nil {
		b.Fatal(err)
	}
	home := b.TempDir()
	config := filepath.Join(home, "repository.config")
	command := func(args ...string) *exec.Cmd {
		c := exec.CommandContext(b.Context(), program, append(args, "--config-file="+config, "--password="+string(m.Key), "--log-dir="+home)...)
		c.Env = append(os.Environ(), "HOME="+home, "KOPIA_CHECK_FOR_UPDATES=false", "XDG_CACHE_HOME="+home)
		return c
	}
	if output, err := command("repository", "connect", "s3", "--bucket="+benchmarkBucket, "--prefix=kopia/app/", "--endpoint="+endpoint.Host, "--disable-tls",
		"--access-key=id", "--secret-access-key=secret", "--override-username=default", "--override-hostname=default", "--cache-directory="+filepath.Join(home, "cache")).CombinedOutput(); err != nil {
		b.Fatalf("connecting Kopia's command: %v\n%s", err, output)
	}
	return command("maintenance", "run", "--full")
}

func content(b *testing.B, backend gofakes3.Backend, key string) []byte {
	b.Helper()
	object, err := backend.GetObject(benchmarkBucket, key, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer object.Contents.Close()
	data := make([]byte, object.Size)
	for read := 0; read < len(data); {
		n, err := object.Contents.Read(data[read:])
		if read += n; err != nil && read < len(data) {
			b.Fatal(err)
		}
	}
	return data
}

// reset gives a bucket the objects that it had.
func reset(b *testing.B, backend gofakes3.Backend, before map[string][]byte) {
	b.Helper()
	list, err := backend.ListBucket(benchmarkBucket, nil, gofakes3.ListBucketPage{})
	if err != nil {
		b.Fatal(err)
	}
	for _, object := range list.Contents {
		if _, err := backend.DeleteObject(benchmarkBucket, object.Key); err != nil {
			b.Fatal(err)
		}
	}
	written := map[string]string{"Last-Modified": time.Now().UTC().Format(http.TimeFormat)}
	for key, data := range before {
		if _, err := backend.PutObject(benchmarkBucket, key, written, bytes.NewReader(data), int64(len(data)), nil); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkReclaimed is what comes back of the space of a half of the backups that is deleted,
// with each of the daily full maintenances that follow.
func BenchmarkReclaimed(b *testing.B) {
	const backups, size = 10, 10 << 20
	for b.Loop() {
		w := newWorld(b)
		r := w.open()
		var goes []string
		for i := range backups {
			dir := b.TempDir()
			random(b, dir, 10, size/10)
			if id := w.upload(r, fmt.Sprint("volume-", i), dir); i%2 == 0 {
				goes = append(goes, id)
			}
		}
		w.maintain()
		before := w.size()
		w.remove(goes...)
		runs, last := 0, before
		for run := 1; run <= 10; run++ {
			w.Advance(25 * time.Hour)
			w.maintain()
			if now := w.size(); last-now > size/10 {
				runs, last = run, now
			}
		}
		b.ReportMetric(float64(before-last)/(1<<20), "reclaimed-MiB")
		b.ReportMetric(float64(len(goes)*size)/(1<<20), "deleted-MiB")
		b.ReportMetric(float64(runs), "runs")
	}
	b.ReportMetric(0, "ns/op")
}
