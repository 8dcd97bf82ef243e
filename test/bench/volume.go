// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// What is in the volume: few large files, for throughput, and many small ones, for
// the cost of a file.
const (
	bigFiles, bigSize     = 4, 200 << 20
	smallFiles, smallSize = 20000, 8 << 10
	volumeBytes           = bigFiles*bigSize + smallFiles*smallSize
)

// kopiaSettings are flags of Kopia's command: of `repository create`, and of `policy set
// --global`.
type kopiaSettings struct{ create, policy []string }

// ourSettings are those of pkg/repository and pkg/datapath, for a comparison of like
// with like. As many files are uploaded at once as pkg/datapath does.
var ourSettings = kopiaSettings{
	create: []string{"--block-hash=BLAKE3-256-128", "--format-block-key-derivation-algorithm=pbkdf2-sha256-600000"},
	policy: []string{"--compression=zstd-fastest", "--parallel-upload-above-size-mib=128",
		fmt.Sprintf("--max-parallel-file-reads=%d", max(8, 2*runtime.GOMAXPROCS(0)))},
}

type volumeOptions struct {
	scratch, kopia, pods string
	rounds               int
}

// uploaded is one upload, into a new repository.
type uploaded struct {
	// CreateSeconds is the rest of the way besides the upload: for Kopia the
	// creation of the repository, for us all from the request for the backup to its end.
	CreateSeconds float64
	// UploadSeconds is the upload; through the agent from its start of work to its
	// end, as a watcher sees them.
	UploadSeconds float64
	// PeakBytes of memory of the process so far.
	PeakBytes int64
	// CPUSeconds of the process: for Kopia of the upload, for the agent of
	// everything that it does for a backup.
	CPUSeconds float64
}

func (u uploaded) whole() float64 { return u.CreateSeconds + u.UploadSeconds }

// series are repeated uploads of one kind.
type series []uploaded

func (s series) values(of func(uploaded) float64) []float64 {
	var values []float64
	for _, u := range s {
		values = append(values, of(u))
	}
	return values
}

// Of times the fastest counts: what else the machine does can only add to one, and
// on a busy machine the median of a few says more about its load than about us.
func (s series) upload() float64 {
	return slices.Min(s.values(func(u uploaded) float64 { return u.UploadSeconds }))
}
func (s series) whole() float64 { return slices.Min(s.values(uploaded.whole)) }
func (s series) cpu() float64 {
	return median(s.values(func(u uploaded) float64 { return u.CPUSeconds }))
}
func (s series) peak() int64 {
	return slices.MaxFunc(s, func(a, b uploaded) int { return cmp.Compare(a.PeakBytes, b.PeakBytes) }).PeakBytes
}

func (s series) String() string {
	return fmt.Sprintf("%.2f s, %.0f MB/s", s.upload(), volumeBytes/1e6/s.upload())
}

// measureVolume uploads the same files through the agent and by Kopia's command, in
// turn, each time into a new repository.
func measureVolume(ctx context.Context, l *lab, o volumeOptions) (rows []row, err error) {
	files := filepath.Join(o.scratch, "files")
	fmt.Printf("writing %d files of %d MiB and %d of %d KiB\n", bigFiles, bigSize>>20, smallFiles, smallSize>>10)
	if err := writeFiles(files); err != nil {
		return nil, err
	}
	store := filepath.Join(o.scratch, "store")
	if err := os.MkdirAll(store, 0o755); err != nil {
		return nil, err
	}
	_, err = l.engine.EngineV1alpha1().StorageLocations(namespace).Create(ctx, &enginev1alpha1.StorageLocation{
		ObjectMeta: metav1.ObjectMeta{Name: "bench"},
		Spec: enginev1alpha1.StorageLocationSpec{
			AllowedNamespaces: &enginev1alpha1.AllowedNamespaces{Names: []string{"*"}},
			Provider:          enginev1alpha1.StorageProviderFilesystem,
			Filesystem:        &enginev1alpha1.FilesystemLocation{Path: store},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	idle, err := l.peakMemory("holdfast-agent-0")
	if err != nil {
		return nil, err
	}
	fmt.Printf("agent's peak before the first upload: %.0f MB\n", megabytes(idle))
	var agent, defaults, like series
	for i := range o.rounds {
		name := fmt.Sprintf("bench-volume-%d", i)
		before, err := l.cpuTime("holdfast-agent-0")
		if err != nil {
			return nil, err
		}
		u, err := l.uploadByAgent(ctx, name, files, o.pods)
		if err != nil {
			return nil, err
		}
		after, err := l.cpuTime("holdfast-agent-0")
		if err != nil {
			return nil, err
		}
		u.CPUSeconds = (after - before).Seconds()
		if u.PeakBytes, err = l.peakMemory("holdfast-agent-0"); err != nil {
			return nil, err
		}
		agent = append(agent, u)
		if err := removeRepository(filepath.Join(store, "kopia", name)); err != nil {
			return nil, err
		}
		for _, peer := range []struct {
			of       *series
			settings kopiaSettings
		}{{&defaults, kopiaSettings{}}, {&like, ourSettings}} {
			u, err := uploadByKopia(ctx, o, files, peer.settings)
			if err != nil {
				return nil, err
			}
			*peer.of = append(*peer.of, u)
		}
		fmt.Printf("  round %d, uploading (time, CPU time, peak memory so far): the agent %s; Kopia's command %s; with our settings %s\n",
			i+1, oneUpload(agent[i]), oneUpload(defaults[i]), oneUpload(like[i]))
	}
	rows = []row{{"the same with a new repository, from creation to Completed", fmt.Sprintf("%.2f s", agent.whole()),
		fmt.Sprintf("Kopia's command %.2f s", defaults.whole()), times(agent.whole(), defaults.whole()) + " of its time"}}
	for i, peer := range []series{defaults, like} {
		name := []string{"Kopia's command", "with our settings"}[i]
		rows = slices.Insert(rows, 3*i,
			row{fmt.Sprintf("agent's upload of %.0f MB, fastest of %d", volumeBytes/1e6, o.rounds), agent.String(), name + " " + peer.String(), times(agent.upload(), peer.upload()) + " of its time"},
			row{"agent's CPU time for it", fmt.Sprintf("%.1f s", agent.cpu()), fmt.Sprintf("%s %.1f s", name, peer.cpu()), times(agent.cpu(), peer.cpu()) + " of it"},
			row{fmt.Sprintf("agent's peak memory after %d of them", o.rounds), fmt.Sprintf("%.0f MB", megabytes(agent.peak())), fmt.Sprintf("%s %.0f MB", name, megabytes(peer.peak())), times(float64(agent.peak()), float64(peer.peak())) + " of it"},
		)
	}
	return rows, nil
}

func oneUpload(u uploaded) string {
	return fmt.Sprintf("%.2f s, CPU %.1f s, %.0f MB", u.UploadSeconds, u.CPUSeconds, megabytes(u.PeakBytes))
}

// removeRepository makes room for the next one. It fails if the repository does
// not hold the files: they are random, so it can't be smaller than they are.
func removeRepository(dir string) error {
	var size int64
	err := filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			size += info.Size()
		}
		return err
	})
	if err != nil {
		return err
	}
	if size < volumeBytes {
		return fmt.Errorf("the repository %s has %d bytes, fewer than the files' %d", dir, size, volumeBytes)
	}
	return os.RemoveAll(dir)
}

// uploadByAgent makes a namespace with a pod whose volume holds the files, backs it
// up, and puts the files back where they were.
func (l *lab) uploadByAgent(ctx context.Context, name, files, pods string) (result uploaded, err error) {
	pod, err := l.makePod(ctx, name)
	if err != nil {
		return result, err
	}
	// Where the kubelet would have the volume.
	folder := filepath.Join(pods, string(pod.UID), "volumes", "kubernetes.io~empty-dir")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return result, err
	}
	volume := filepath.Join(folder, "data")
	if err := os.Rename(files, volume); err != nil {
		return result, fmt.Errorf("the files and the agent's folder of pods must be in one file system: %w", err)
	}
	defer func() { err = errors.Join(err, os.Rename(volume, files)) }()

	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	changes, err := l.engine.EngineV1alpha1().VolumeUploads(namespace).Watch(watching, metav1.ListOptions{})
	if err != nil {
		return result, err
	}
	defer changes.Stop()
	type outcome struct {
		took time.Duration
		err  error
	}
	done := make(chan outcome, 1)
	go func() {
		took, err := followUpload(changes, name)
		done <- outcome{took, err}
	}()

	backup := newBackup(name, name)
	backup.Spec.StorageLocation = "bench"
	backup.Spec.DefaultVolumesToFsBackup = ptr.To(true)
	begin := time.Now()
	runs, err := l.run(ctx, []*v1alpha1.Backup{backup}, 1, nothing)
	if err != nil {
		return result, err
	}
	if v := runs[name].status.Volumes; v == nil || v.Completed != 1 || v.BytesDone < volumeBytes {
		return result, fmt.Errorf("backup %s has the volumes %+v, not one of %d bytes", name, v, volumeBytes)
	}
	upload := <-done
	whole := runs[name].ended.Sub(begin)
	return uploaded{CreateSeconds: (whole - upload.took).Seconds(), UploadSeconds: upload.took.Seconds()}, upload.err
}

// makePod makes a namespace, and in it a pod that a kubelet would have started.
func (l *lab) makePod(ctx context.Context, name string) (*corev1.Pod, error) {
	_, err := l.kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	var pod *corev1.Pod
	var refused error
	// A pod is refused until its namespace has its service account.
	err = wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		pod, refused = l.kube.CoreV1().Pods(name).Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "web"},
			Spec: corev1.PodSpec{
				NodeName: "lab-node-0",
				Containers: []corev1.Container{{
					Name: "web", Image: "example.com/web",
					VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}},
				}},
				Volumes: []corev1.Volume{{
					Name:         "data",
					VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}},
				}},
			},
		}, metav1.CreateOptions{})
		return refused == nil, nil
	})
	if err != nil {
		return nil, cmp.Or(refused, err)
	}
	pod.Status.Phase = corev1.PodRunning
	return l.kube.CoreV1().Pods(name).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
}

// followUpload times the upload of the one volume of a namespace.
func followUpload(changes watch.Interface, of string) (time.Duration, error) {
	var began time.Time
	for event := range changes.ResultChan() {
		record, ok := event.Object.(*enginev1alpha1.VolumeUpload)
		if !ok || record.Spec.Pod.Namespace != of {
			continue
		}
		switch {
		case record.Status.Phase == enginev1alpha1.VolumePhaseInProgress && began.IsZero():
			began = time.Now()
		case record.Status.Phase == enginev1alpha1.VolumePhaseFailed:
			return 0, fmt.Errorf("the upload failed: %s", record.Status.Message)
		case record.Status.Phase == enginev1alpha1.VolumePhaseCompleted && !began.IsZero():
			return time.Since(began), nil
		}
	}
	return 0, errors.New("the watch of the uploads broke off")
}

// uploadByKopia makes a repository and uploads files to it by Kopia's own command.
func uploadByKopia(ctx context.Context, o volumeOptions, files string, settings kopiaSettings) (result uploaded, err error) {
	home := filepath.Join(o.scratch, "kopia")
	defer func() { err = errors.Join(err, os.RemoveAll(home)) }()
	repository := filepath.Join(home, "repository")
	if err := os.MkdirAll(repository, 0o755); err != nil {
		return result, err
	}
	kopia := func(args ...string) (*os.ProcessState, error) {
		command := exec.CommandContext(ctx, o.kopia, append(args, "--no-progress", "--no-auto-maintenance")...)
		command.Env = append(os.Environ(),
			"KOPIA_CONFIG_PATH="+filepath.Join(home, "config"),
			"KOPIA_CACHE_DIRECTORY="+filepath.Join(home, "cache"),
			"KOPIA_LOG_DIR="+filepath.Join(home, "logs"),
			"KOPIA_PASSWORD=benchmark", "KOPIA_CHECK_FOR_UPDATES=false")
		output, err := command.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%s %v: %w\n%s", o.kopia, args, err, output)
		}
		return command.ProcessState, err
	}
	begin := time.Now()
	if _, err := kopia(append([]string{"repository", "create", "filesystem", "--path=" + repository}, settings.create...)...); err != nil {
		return result, err
	}
	if len(settings.policy) > 0 {
		if _, err := kopia(append([]string{"policy", "set", "--global"}, settings.policy...)...); err != nil {
			return result, err
		}
	}
	result.CreateSeconds = time.Since(begin).Seconds()

	begin = time.Now()
	upload, err := kopia("snapshot", "create", files)
	if err != nil {
		return result, err
	}
	result.UploadSeconds = time.Since(begin).Seconds()
	result.CPUSeconds = (upload.UserTime() + upload.SystemTime()).Seconds()
	// Linux counts what this program had when it began the command, too, which is less.
	result.PeakBytes = upload.SysUsage().(*syscall.Rusage).Maxrss << 10
	return result, removeRepository(repository)
}

func writeFiles(dir string) error {
	random := randomness(0)
	for _, kind := range []struct {
		name        string
		count, size int64
	}{{"big", bigFiles, bigSize}, {"small", smallFiles, smallSize}} {
		for i := range kind.count {
			// A hundred files in a folder, as in a mailbox or a cache.
			folder := filepath.Join(dir, kind.name, fmt.Sprint(i/100))
			if err := os.MkdirAll(folder, 0o755); err != nil {
				return err
			}
			file, err := os.Create(filepath.Join(folder, fmt.Sprint(i)))
			if err != nil {
				return err
			}
			_, err = io.CopyN(file, random, kind.size)
			if err := errors.Join(err, file.Close()); err != nil {
				return err
			}
		}
	}
	return nil
}
