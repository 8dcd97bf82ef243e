// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	engineclientset "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned"
	holdfastclientset "github.com/holdfast-io/holdfast/pkg/generated/holdfast/clientset/versioned"
)

// namespace is Holdfast's own in a lab.
const namespace = "holdfast"

// parallel is how many requests we make at once to fill the cluster.
const parallel = 16

// lab is a control plane with Holdfast in it, as `lab holdfast up` leaves it. It
// must have been started with --run-retention=0s: a run that is gone has ended.
type lab struct {
	dir      string
	kube     kubernetes.Interface
	engine   engineclientset.Interface
	holdfast holdfastclientset.Interface
}

func openLab(dir string) (*lab, error) {
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "kubeconfig"))
	if err != nil {
		return nil, fmt.Errorf("no lab in %q: start one with `lab up`: %w", dir, err)
	}
	config.QPS, config.WarningHandler = -1, rest.NoWarnings{} // of a store that we took away
	l := &lab{dir: dir}
	var errs [3]error
	l.kube, errs[0] = kubernetes.NewForConfig(config)
	l.engine, errs[1] = engineclientset.NewForConfig(config)
	l.holdfast, errs[2] = holdfastclientset.NewForConfig(config)
	return l, errors.Join(errs[:]...)
}

// pid is the id of one of the lab's processes, such as holdfast-controller.
func (l *lab) pid(name string) (int, error) {
	raw, err := os.ReadFile(filepath.Join(l.dir, "run", name+".json"))
	if err != nil {
		return 0, err
	}
	var process struct{ PID int }
	if err := json.Unmarshal(raw, &process); err != nil {
		return 0, err
	}
	return process.PID, nil
}

// peakMemory is the most physical memory, in bytes, that a process of the lab has
// had so far.
func (l *lab) peakMemory(name string) (int64, error) { return l.memory(name, "VmHWM:") }

// memory is a field of proc_pid_status(5), in bytes, of a process of the lab.
func (l *lab) memory(name, field string) (int64, error) {
	pid, err := l.pid(name)
	if err != nil {
		return 0, err
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("%s has ended; see its log: %w", name, err)
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, field); ok {
			var kibibytes int64 // though it says kB
			_, err := fmt.Sscanf(value, "%d kB", &kibibytes)
			return kibibytes * 1024, err
		}
	}
	return 0, fmt.Errorf("no %s in /proc; this needs Linux", field)
}

// cpuTime is how long a process of the lab has kept a CPU busy so far. Unlike the
// time that passes, it hardly depends on what else the machine does. Source: utime
// and stime in proc_pid_stat(5), in ticks that Linux shows as 1/100 s everywhere.
func (l *lab) cpuTime(name string) (time.Duration, error) {
	pid, err := l.pid(name)
	if err != nil {
		return 0, err
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("%s has ended; see its log: %w", name, err)
	}
	// The second field is the program's name, which may hold spaces.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	user, userErr := strconv.Atoi(fields[11])
	system, systemErr := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond, errors.Join(userErr, systemErr)
}

const wholeMachine = "the whole machine"

// cpuTimes are those of all processes that take part in a backup of objects, and
// that of the machine.
func (l *lab) cpuTimes() (map[string]time.Duration, error) {
	machine, err := machineTime()
	if err != nil {
		return nil, err
	}
	times := map[string]time.Duration{wholeMachine: machine}
	for _, name := range []string{"holdfast-controller", "holdfast-apiserver", "kube-apiserver", "etcd"} {
		if times[name], err = l.cpuTime(name); err != nil {
			return nil, err
		}
	}
	return times, nil
}

// machineTime is how long the machine's CPUs have been busy so far, with everything.
// Source: the first line of proc_stat(5); idle and iowait are its fourth and fifth
// number, and what follows the eighth is counted in the first two.
func machineTime() (time.Duration, error) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(stat), "\n")
	var busy time.Duration
	for i, field := range strings.Fields(line)[1:] {
		if i == 3 || i == 4 || i > 7 {
			continue
		}
		ticks, err := strconv.Atoi(field)
		if err != nil {
			return 0, fmt.Errorf("/proc/stat: %w", err)
		}
		busy += time.Duration(ticks) * 10 * time.Millisecond
	}
	return busy, nil
}

// fill makes a namespace with ConfigMaps whose data is a text of a given size. What
// exists is left as it is.
func (l *lab) fill(ctx context.Context, name string, count, size int) error {
	_, err := l.kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return each(ctx, count, func(ctx context.Context, i int) error {
		_, err := l.kube.CoreV1().ConfigMaps(name).Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("settings-%05d", i)},
			Data:       map[string]string{"text": text(size, uint64(i))},
		}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
}

// listed waits until the API shows n backups of a name that begins with prefix as
// Completed: what was measured is there.
func (l *lab) listed(ctx context.Context, prefix string, n int) error {
	count := 0
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		list, err := l.holdfast.HoldfastV1alpha1().Backups(namespace).List(ctx, metav1.ListOptions{FieldSelector: "status.phase=Completed"})
		if err != nil {
			return false, err
		}
		count = 0
		for _, b := range list.Items {
			if strings.HasPrefix(b.Name, prefix) {
				count++
			}
		}
		return count == n, nil
	})
	if err != nil {
		return fmt.Errorf("the API lists %d of %d backups %s* as Completed: %w", count, n, prefix, err)
	}
	return nil
}

// newBackup is a backup of one namespace.
func newBackup(name, of string) *v1alpha1.Backup {
	return &v1alpha1.Backup{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec:       v1alpha1.BackupSpec{IncludedNamespaces: []string{of}},
	}
}

// eachRequest tells how often kube-apiserver was asked for what, by its metrics.
func (l *lab) eachRequest(ctx context.Context, found func(verb, resource string, times int)) error {
	raw, err := l.kube.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(bytes.NewReader(raw))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		labels, ok := strings.CutPrefix(lines.Text(), "apiserver_request_total{")
		if !ok {
			continue
		}
		of := func(label string) string {
			_, after, _ := strings.Cut(","+labels, ","+label+`="`)
			value, _, _ := strings.Cut(after, `"`)
			return value
		}
		value, err := strconv.ParseFloat(labels[strings.LastIndexByte(labels, ' ')+1:], 64)
		if err != nil {
			return fmt.Errorf("%s: %w", lines.Text(), err)
		}
		found(of("verb"), of("resource"), int(value))
	}
	return lines.Err()
}

// requestsMade is how many requests kube-apiserver has had so far, apart from watches and from
// the renewal of Leases, which go on with backups or without.
func (l *lab) requestsMade(ctx context.Context) (total int, err error) {
	err = l.eachRequest(ctx, func(verb, resource string, times int) {
		if verb != "WATCH" && (resource != "leases" || verb == "LIST") {
			total += times
		}
	})
	return total, err
}
