// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package labtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/holdfast-io/holdfast/pkg/lease"
)

// The processes of Holdfast. Tests that end them must not run in parallel.
const (
	APIServer  = "apiserver"
	Controller = "controller"
	Agent      = "agent-0"
	// Those of StartAnother.
	AnotherAPIServer  = "apiserver-1"
	AnotherController = "controller-1"
)

// Kill ends a process with SIGKILL and leaves it so until Start, or until the
// test ends.
func (l *Lab) Kill(t testing.TB, role string) {
	t.Helper()
	if err := l.Signal(role, syscall.SIGKILL); err != nil {
		t.Fatalf("killing the %s: %v", role, err)
	}
	l.AwaitKilled(t, role)
}

// Signal sends a signal to a process, from any goroutine. After a SIGSTOP it returns when
// the process has stopped: on a busy machine its threads go on for a while.
func (l *Lab) Signal(role string, signal syscall.Signal) error {
	p, err := l.process(role)
	if err != nil {
		return err
	}
	if err := syscall.Kill(p.PID, signal); err != nil || signal != syscall.SIGSTOP {
		return err
	}
	for deadline := time.Now().Add(30 * time.Second); !stopped(p.PID); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("the %s, with the pid %d, does not stop", role, p.PID)
		}
	}
	return nil
}

// stopped reports whether all threads of a process have stopped, or it has ended.
func stopped(pid int) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, thread := range threads {
		// PID (NAME) STATE ...: proc_pid_stat(5)
		content, err := os.ReadFile(thread)
		if err != nil {
			continue // the thread has ended
		}
		if end := bytes.LastIndexByte(content, ')'); end < 0 || !bytes.ContainsAny(content[end:min(end+3, len(content))], "TZX") {
			return false
		}
	}
	return true
}

// AwaitKilled waits for the end of a process that was sent SIGKILL. It stays so
// until Start, or until the test ends.
func (l *Lab) AwaitKilled(t testing.TB, role string) {
	t.Helper()
	if err := l.awaitEnd(t.Context(), role); err != nil {
		t.Fatal(err)
	}
	t.Logf("killed the %s", role)
	t.Cleanup(func() {
		if !ended(l.pid(t, role)) {
			return
		}
		// The tests that follow need it.
		if err := l.lab(context.Background(), "holdfast", "restart", role); err != nil {
			t.Error(err)
		}
	})
}

// DeleteLeaseOf deletes the Lease of a controller that has ended or is about to, since
// it was killed, if it leads: so that nobody has to wait until the Lease has expired.
func (l *Lab) DeleteLeaseOf(ctx context.Context, role string) error {
	if err := l.awaitEnd(ctx, role); err != nil {
		return err
	}
	p, err := l.process(role)
	if err != nil {
		return err
	}
	leases := l.Kube.CoordinationV1().Leases(System)
	held, err := leases.Get(ctx, lease.LeaderLease, metav1.GetOptions{})
	if err == nil && strings.Contains(*held.Spec.HolderIdentity, fmt.Sprintf("_%d_", p.PID)) {
		err = leases.Delete(ctx, held.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &held.UID, ResourceVersion: &held.ResourceVersion},
		})
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		err = nil
	}
	return err
}

// Start starts a process that was killed, with the arguments that it had.
func (l *Lab) Start(t testing.TB, role string) {
	t.Helper()
	if err := l.Restart(t.Context(), role); err != nil {
		t.Fatal(err)
	}
	t.Logf("started the %s", role)
}

// Restart starts a process again, from any goroutine, and returns when it is ready.
func (l *Lab) Restart(ctx context.Context, role string) error {
	return l.lab(ctx, "holdfast", "restart", role)
}

// Running reports whether a process runs, also when it is stopped by a signal.
func (l *Lab) Running(role string) bool {
	p, err := l.process(role)
	return err == nil && !ended(p.PID)
}

// AwaitEnd waits for the end of a process that was told to stop.
func (l *Lab) AwaitEnd(t testing.TB, role string) {
	t.Helper()
	if err := l.awaitEnd(t.Context(), role); err != nil {
		t.Fatal(err)
	}
}

func (l *Lab) awaitEnd(ctx context.Context, role string) error {
	p, err := l.process(role)
	if err != nil {
		return err
	}
	return Await(ctx, "the end of the "+role, func() error {
		if !ended(p.PID) {
			return fmt.Errorf("process %d still runs", p.PID)
		}
		return nil
	})
}

// StartAnother starts AnotherAPIServer or AnotherController with the arguments that
// the first one has, until the test ends.
func (l *Lab) StartAnother(t testing.TB, role string) {
	t.Helper()
	p, err := l.process(strings.TrimSuffix(role, "-1"))
	if err != nil {
		t.Fatal(err)
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.Args = append(p.Args, fmt.Sprintf("--secure-port=%d", free.Addr().(*net.TCPAddr).Port))
	p.Name = "holdfast-" + role
	p.Log = filepath.Join(l.Dir, "logs", p.Name+".log")
	p.PID = 0 // to the lab it has ended
	if err := errors.Join(l.save(role, p), free.Close()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := l.Signal(role, syscall.SIGTERM)
		if err == nil || errors.Is(err, syscall.ESRCH) {
			err = l.awaitEnd(context.Background(), role)
		}
		if err := errors.Join(err, os.Remove(l.processFile(role))); err != nil {
			t.Error(err)
		}
	})
	l.Start(t, role)
}

// Address is where a process serves.
func (l *Lab) Address(t testing.TB, role string) string {
	t.Helper()
	p, err := l.process(role)
	if err != nil {
		t.Fatal(err)
	}
	var host, port string
	for _, arg := range p.Args { // of flags given twice the last one counts
		if value, ok := strings.CutPrefix(arg, "--bind-address="); ok {
			host = value
		}
		if value, ok := strings.CutPrefix(arg, "--secure-port="); ok {
			port = value
		}
	}
	return net.JoinHostPort(host, port)
}

// Invocation is the program of a process, and its arguments.
func (l *Lab) Invocation(t testing.TB, role string) (path string, args []string) {
	t.Helper()
	p, err := l.process(role)
	if err != nil {
		t.Fatal(err)
	}
	return p.Path, p.Args
}

// process is what the lab keeps of a process.
type process struct {
	Name       string   `json:"name"`
	Path       string   `json:"path"`
	Args       []string `json:"args"`
	Log        string   `json:"log"`
	PID        int      `json:"pid"`
	StartTicks uint64   `json:"startTicks"`
	BootID     string   `json:"bootID"`
}

func (l *Lab) process(role string) (process, error) {
	var p process
	raw, err := os.ReadFile(l.processFile(role))
	if err != nil {
		return p, err
	}
	return p, json.Unmarshal(raw, &p)
}

func (l *Lab) save(role string, p process) error {
	raw, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return os.WriteFile(l.processFile(role), raw, 0o600)
}

func (l *Lab) processFile(role string) string {
	return filepath.Join(l.Dir, "run", "holdfast-"+role+".json")
}

// Memory is how many bytes of a role are resident. Source: VmRSS in proc_pid_status(5).
func (l *Lab) Memory(t testing.TB, role string) int64 { return l.memory(t, role, "VmRSS:") }

// PeakMemory is the most that Memory has been. Source: VmHWM, as above.
func (l *Lab) PeakMemory(t testing.TB, role string) int64 { return l.memory(t, role, "VmHWM:") }

func (l *Lab) memory(t testing.TB, role, field string) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", l.pid(t, role)))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, field); ok {
			kilobytes, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kilobytes << 10
		}
	}
	t.Fatalf("%s has no %s", role, field)
	return 0
}

func (l *Lab) pid(t testing.TB, role string) int {
	t.Helper()
	p, err := l.process(role)
	if err != nil {
		t.Fatal(err)
	}
	return p.PID
}

// ended reports whether a process has ended, be it that nobody has asked yet how: it
// is no child of the test. While one of its threads is left, it keeps its ports.
func ended(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH)
	}
	// The fields come behind the program's name, which may hold anything.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	state, threads := string(fields[0]), string(fields[17])
	return state == "Z" && threads <= "1"
}

// Reconfigure starts the controller again with flags added to its own, until the
// test ends. The test must not be parallel.
func (l *Lab) Reconfigure(t testing.TB, controllerFlags string) {
	t.Helper()
	before, err := l.process(Controller)
	if err != nil {
		t.Fatal(err)
	}
	restart := func(ctx context.Context, args []string) error {
		p, err := l.process(Controller)
		if err != nil {
			return err
		}
		p.Args = args
		if err := l.save(Controller, p); err != nil {
			return err
		}
		return l.lab(ctx, "holdfast", "restart", Controller)
	}
	t.Cleanup(func() {
		if err := restart(context.Background(), before.Args); err != nil {
			t.Error(err)
		}
	})
	if err := restart(t.Context(), slices.Concat(before.Args, strings.Fields(controllerFlags))); err != nil {
		t.Fatal(err)
	}
}

// KubeAPIServer starts one more kube-apiserver of the lab, without one of its flags, until the test
// ends. It returns the kubeconfig of an account, or of the administrator without one, to reach it.
func (l *Lab) KubeAPIServer(t testing.TB, without string) (kubeconfigOf func(account string) string) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(l.Dir, "run", "kube-apiserver.json"))
	if err != nil {
		t.Fatal(err)
	}
	var p process
	if err := json.Unmarshal(raw, &p); err != nil {
		t.Fatal(err)
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(address)
	args := slices.DeleteFunc(slices.Clone(p.Args), func(arg string) bool { return strings.HasPrefix(arg, without) })
	if len(args) == len(p.Args) {
		t.Fatalf("kube-apiserver has no flag %s: %q", without, p.Args)
	}
	dir := t.TempDir()
	output, err := os.Create(filepath.Join(l.Dir, "logs", "kube-apiserver-1.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer output.Close()
	command := exec.Command(p.Path, append(args, "--secure-port="+port, "--bind-address=127.0.0.1", "--audit-log-path="+filepath.Join(dir, "audit.log"))...)
	command.Stdout, command.Stderr = output, output
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := command.Process.Kill(); err != nil {
			t.Error(err)
		}
		_ = command.Wait()
	})
	kubeconfigOf = func(account string) string {
		path := l.Kubeconfig()
		if account != "" {
			path = l.KubeconfigOf(account)
		}
		config, err := clientcmd.LoadFromFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, cluster := range config.Clusters {
			cluster.Server = "https://" + address
		}
		path = filepath.Join(dir, filepath.Base(path))
		if err := clientcmd.WriteToFile(*config, path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfigOf(""))
	if err != nil {
		t.Fatal(err)
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	Eventually(t, "another kube-apiserver to be ready", func() error {
		return kube.Discovery().RESTClient().Get().AbsPath("/readyz").Do(t.Context()).Error()
	})
	return kubeconfigOf
}
