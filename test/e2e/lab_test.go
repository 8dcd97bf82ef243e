// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

// patience is how long a test waits for what takes seconds. It is for machines
// that are busy with other things.
const patience = 2 * time.Minute

// step tells whoever watches what comes.
func step(what string) { fmt.Printf("\n== %s\n", what) }

// command is a kubectl that is not started yet.
func (c *cluster) command(ctx context.Context, args ...string) *exec.Cmd {
	command := exec.CommandContext(ctx, filepath.Join(c.bin, "kubectl"), args...)
	command.Env = append(os.Environ(), "KUBECONFIG="+c.path("kubeconfig"), "KUBECACHEDIR="+c.path("kubectl-cache"))
	return command
}

// kubectl runs kubectl with manifests as its input, and returns what it prints.
func (c *cluster) kubectl(ctx context.Context, manifests string, args ...string) (string, error) {
	command := c.command(ctx, args...)
	var out, complaint bytes.Buffer
	command.Stdin, command.Stdout, command.Stderr = strings.NewReader(manifests), &out, &complaint
	if err := command.Run(); err != nil {
		return "", fmt.Errorf("kubectl %s: %w\n%s%s", strings.Join(args, " "), err, complaint.String(), out.String())
	}
	return out.String(), nil
}

// show is kubectl for the reader's eyes.
func (c *cluster) show(ctx context.Context, args ...string) error {
	fmt.Printf("$ kubectl %s\n", strings.Join(args, " "))
	out, err := c.kubectl(ctx, "", args...)
	fmt.Print(out)
	return err
}

// must fails the test unless kubectl succeeds, and returns what it prints.
func (c *cluster) must(t testing.TB, args ...string) string {
	t.Helper()
	out, err := c.kubectl(t.Context(), "", args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// mustShow is show, and fails the test unless kubectl succeeds.
func (c *cluster) mustShow(t *testing.T, args ...string) {
	t.Helper()
	if err := c.show(t.Context(), args...); err != nil {
		t.Fatal(err)
	}
}

// create creates what manifests say.
func (c *cluster) create(t testing.TB, manifests string) {
	t.Helper()
	if _, err := c.kubectl(t.Context(), manifests, "create", "-f", "-"); err != nil {
		t.Fatal(err)
	}
}

// exec runs a script in a pod, and returns what it prints.
func (c *cluster) exec(t *testing.T, namespace, pod, script string) string {
	t.Helper()
	return c.must(t, "exec", "-n", namespace, pod, "--", "sh", "-euc", script)
}

// eventually waits until the condition returns nil, and fails the test with its
// last error if it never does.
func eventually(t *testing.T, what string, condition func(ctx context.Context) error) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		err := condition(ctx)
		if last == nil || ctx.Err() == nil { // else it is about the end of our patience
			last = err
		}
		return err == nil, nil
	})
	if err != nil {
		t.Fatalf("gave up waiting until %s: %v", what, last)
	}
}

// process is one that the lab has started on this machine.
type process struct {
	PID  int
	Args []string
}

func (c *cluster) process(name string) (process, error) {
	var p process
	raw, err := os.ReadFile(c.path("run", name+".json"))
	if err != nil {
		return p, err
	}
	return p, json.Unmarshal(raw, &p)
}

// port is the value of the flag --port: of the S3 server, its address.
func (p process) port() string { return p.Args[slices.Index(p.Args, "--port")+1] }

// pauseStore waits for a condition of a backup that goes on, and makes the S3
// server answer nobody from there until resume is called, so that it stays true.
func (c *cluster) pauseStore(t *testing.T, what string, condition func(ctx context.Context) error) (resume func()) {
	t.Helper()
	eventually(t, what, condition)
	server, err := c.process("s3")
	if err != nil {
		t.Fatal(err)
	}
	signal := func(s syscall.Signal) {
		if err := syscall.Kill(server.PID, s); err != nil {
			t.Errorf("signal the S3 server: %v", err)
		}
	}
	signal(syscall.SIGSTOP)
	resume = func() { signal(syscall.SIGCONT) }
	t.Cleanup(resume)
	// If not, the backup has ended meanwhile: its volumes are too small for this.
	eventually(t, what+" with the store paused", condition)
	return resume
}

// pods are those of a component of Holdfast that are not on their way out.
func (c *cluster) pods(ctx context.Context, component string) ([]corev1.Pod, error) {
	list, err := c.kube.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=holdfast,app.kubernetes.io/component=" + component})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil }), nil
}

// mustPods are the pods of a component, of which there must be n.
func (c *cluster) mustPods(t *testing.T, component string, n int) []corev1.Pod {
	t.Helper()
	pods, err := c.pods(t.Context(), component)
	if err != nil {
		t.Fatal(err)
	}
	if len(pods) != n {
		t.Fatalf("%d pods of the component %s, want %d", len(pods), component, n)
	}
	return pods
}

// podOn is the pod of a DaemonSet on a node.
func podOn(t *testing.T, pods []corev1.Pod, node string) corev1.Pod {
	t.Helper()
	i := slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Spec.NodeName == node })
	if i < 0 {
		t.Fatalf("no pod runs on %s", node)
	}
	return pods[i]
}

// kill ends the process of a pod's only container with SIGKILL, from outside.
func kill(t *testing.T, pod corev1.Pod) {
	t.Helper()
	for _, pid := range processes(t, pod) {
		signal(t, pid, syscall.SIGKILL)
	}
}

// processes are those of a pod's only container: the nodes' processes are processes of this
// machine.
func processes(t *testing.T, pod corev1.Pod) (pids []int) {
	t.Helper()
	if len(pod.Status.ContainerStatuses) != 1 {
		t.Fatalf("pod %s has %d containers with a status, want 1", pod.Name, len(pod.Status.ContainerStatuses))
	}
	_, id, _ := strings.Cut(pod.Status.ContainerStatuses[0].ContainerID, "://")
	if len(id) != 64 {
		t.Fatalf("pod %s: %q is not the id of a container", pod.Name, id) // it would be found in other cgroups too
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		// A process that ends meanwhile has no cgroups.
		cgroups, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cgroup"))
		if bytes.Contains(cgroups, []byte(id)) {
			pids = append(pids, pid)
		}
	}
	if len(pids) == 0 {
		t.Fatalf("pod %s has no process in a cgroup of the container %q", pod.Name, id)
	}
	return pids
}

func signal(t *testing.T, pid int, s syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, s); err != nil {
		t.Fatalf("signal %s to %d: %v", s, pid, err)
	}
}

// keepLogs puts the logs of Holdfast's pods beside those of the lab, since they
// go with the nodes.
func (c *cluster) keepLogs() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	keep := func(name string, args ...string) {
		out, err := c.kubectl(ctx, "", args...)
		if err != nil {
			out = err.Error()
		}
		if err := os.WriteFile(c.path("logs", name), []byte(out), 0o644); err != nil {
			fmt.Fprintln(os.Stderr, "e2e: keeping a log:", err)
		}
	}
	keep("cluster.txt", "get", "pods,events,backupruns,volumeuploads,volumerestores,volumerepositories,storagelocations", "-A", "-o", "wide")
	pods, err := c.kube.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=holdfast"})
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e: keeping the logs of the pods:", err)
		return
	}
	for _, pod := range pods.Items {
		keep("pod-"+pod.Name+".log", "logs", "-n", pod.Namespace, pod.Name)
		if len(pod.Status.ContainerStatuses) > 0 && pod.Status.ContainerStatuses[0].RestartCount > 0 {
			keep("pod-"+pod.Name+"-previous.log", "logs", "-n", pod.Namespace, pod.Name, "--previous")
		}
	}
}
