// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
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

type volumeOptions struct {
	scratch, peer, pods string
	rounds              int
}

// peerResult is what the peer prints.
type peerResult struct {
	CreateSeconds, UploadSeconds float64
	PeakBytes                    int64
}

// agentResult is one upload through the agent.
type agentResult struct {
	// whole is from the request for the backup to its end, upload from the agent's
	// start of work to its end, as a watcher sees them.
	whole, upload time.Duration
}

// measureVolume uploads the same files through the agent and by the Kopia library
// alone, in turn, each time into a new repository.
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
	_, err = l.engine.EngineV1alpha1().BackupStorageLocations(namespace).Create(ctx, &enginev1alpha1.BackupStorageLocation{
		ObjectMeta: metav1.ObjectMeta{Name: "bench"},
		Spec: enginev1alpha1.BackupStorageLocationSpec{
			Provider:   enginev1alpha1.StorageProviderFilesystem,
			Filesystem: &enginev1alpha1.FilesystemLocation{Path: store},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	var wholes, uploads []time.Duration
	var peerWholes, peerUploads []float64
	var peerPeak int64
	for i := range o.rounds {
		ours, err := l.uploadByAgent(ctx, fmt.Sprintf("bench-volume-%d", i), files, o.pods)
		if err != nil {
			return nil, err
		}
		// The next repository is to find as much memory free as this one.
		if err := os.RemoveAll(filepath.Join(store, "kopia")); err != nil {
			return nil, err
		}
		theirs, err := uploadByPeer(ctx, o, files)
		if err != nil {
			return nil, err
		}
		fmt.Printf("  round %d: through the agent %s, of which uploading %s; Kopia alone %.2f s, of which uploading %.2f s\n",
			i+1, seconds(ours.whole), seconds(ours.upload), theirs.CreateSeconds+theirs.UploadSeconds, theirs.UploadSeconds)
		wholes, uploads = append(wholes, ours.whole), append(uploads, ours.upload)
		peerWholes = append(peerWholes, theirs.CreateSeconds+theirs.UploadSeconds)
		peerUploads = append(peerUploads, theirs.UploadSeconds)
		peerPeak = max(peerPeak, theirs.PeakBytes)
	}
	agentPeak, err := l.peakMemory("holdfast-agent-0")
	if err != nil {
		return nil, err
	}
	const size = volumeBytes / 1e6
	upload, peerUpload := median(uploads).Seconds(), median(peerUploads)
	whole, peerWhole := median(wholes).Seconds(), median(peerWholes)
	return []row{
		{fmt.Sprintf("upload of %.0f MB by the agent", size), fmt.Sprintf("%.2f s, %.0f MB/s", upload, size/upload),
			fmt.Sprintf("Kopia alone %.2f s, %.0f MB/s", peerUpload, size/peerUpload), times(upload, peerUpload) + " of its time"},
		{"the same, from kubectl create to Completed", fmt.Sprintf("%.2f s", whole),
			fmt.Sprintf("Kopia alone with a new repository %.2f s", peerWhole), times(whole, peerWhole) + " of its time"},
		{fmt.Sprintf("agent's peak memory after %d uploads", o.rounds), fmt.Sprintf("%.0f MB", megabytes(agentPeak)),
			fmt.Sprintf("Kopia alone, one upload %.0f MB", megabytes(peerPeak)), times(float64(agentPeak), float64(peerPeak)) + " of it"},
	}, nil
}

// uploadByAgent makes a namespace with a pod whose volume holds the files, backs it
// up, and puts the files back where they were.
func (l *lab) uploadByAgent(ctx context.Context, name, files, pods string) (result agentResult, err error) {
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
	changes, err := l.engine.EngineV1alpha1().PodVolumeBackups(namespace).Watch(watching, metav1.ListOptions{})
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
	runs, err := l.run(ctx, []*v1alpha1.Backup{backup}, func() error { return nil })
	if err != nil {
		return result, err
	}
	if v := runs[name].status.Volumes; v == nil || v.Completed != 1 || v.BytesDone < volumeBytes {
		return result, fmt.Errorf("backup %s has the volumes %+v, not one of %d bytes", name, v, volumeBytes)
	}
	uploaded := <-done
	return agentResult{whole: runs[name].ended.Sub(begin), upload: uploaded.took}, uploaded.err
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
		record, ok := event.Object.(*enginev1alpha1.PodVolumeBackup)
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

func uploadByPeer(ctx context.Context, o volumeOptions, files string) (result peerResult, err error) {
	repository := filepath.Join(o.scratch, "repository")
	if err := os.Mkdir(repository, 0o755); err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(repository)) }()
	command := exec.CommandContext(ctx, o.peer, "--files", files, "--repository", repository)
	command.Stderr = os.Stderr
	output, err := command.Output()
	if err != nil {
		return result, fmt.Errorf("%s: %w", o.peer, err)
	}
	return result, json.Unmarshal(output, &result)
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
