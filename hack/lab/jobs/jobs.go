// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package jobs is what a lab without nodes has in place of a kubelet, for the Jobs that
// maintain repositories: it runs the command of each of their pods as a process of this
// machine, with the rights of the pod's account and no others, and writes into the pod's
// status what came of it. A pod that is deleted ends its process.
package jobs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-io/holdfast/hack/lab/kubeconfig"
	"github.com/holdfast-io/holdfast/hack/lab/workdir"
)

const (
	// Namespace is where the Jobs are, and Account the only one that their pods may have.
	Namespace = "holdfast-maintenance"
	Account   = "holdfast-repo-maintenance"
	// grace is how long a process may take to end by itself.
	grace = 10 * time.Second
	// messageLimit is how much of a container's last words Kubernetes keeps.
	messageLimit = 4096
	retry        = time.Second
)

// Runner runs pods.
type Runner struct {
	Dir    workdir.Dir
	Binary string // the program that the pods' image is of
	Log    io.Writer

	client *http.Client
	url    string

	mu      sync.Mutex
	stops   map[string]context.CancelFunc // by the uid of the pod
	running sync.WaitGroup
}

// pod is the part of a Pod that counts here.
type pod struct {
	Metadata struct {
		Name            string `json:"name"`
		UID             string `json:"uid"`
		ResourceVersion string `json:"resourceVersion"`
		Deletion        string `json:"deletionTimestamp"`
	} `json:"metadata"`
	Spec struct {
		Account    string `json:"serviceAccountName"`
		Containers []struct {
			Name string   `json:"name"`
			Args []string `json:"args"`
			Env  []struct{ Name, Value string }
		} `json:"containers"`
	} `json:"spec"`
	Status struct {
		Phase string `json:"phase"`
	} `json:"status"`
}

// Run runs pods until ctx ends, and then stops their processes.
func (r *Runner) Run(ctx context.Context) error {
	state, err := r.Dir.Running()
	if err != nil {
		return err
	}
	if r.client, err = kubeconfig.Client(r.Dir.Kubeconfig()); err != nil {
		return err
	}
	r.url = state.Server + "/api/v1/namespaces/" + Namespace + "/pods"
	r.stops = map[string]context.CancelFunc{}
	defer r.running.Wait()
	for ctx.Err() == nil {
		if err := r.follow(ctx); err != nil && ctx.Err() == nil {
			fmt.Fprintln(r.Log, "watching the pods:", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(retry):
		}
	}
	return nil
}

// follow lists the pods, and does what each change of them asks for.
func (r *Runner) follow(ctx context.Context) error {
	var list struct {
		Metadata struct{ ResourceVersion string }
		Items    []pod
	}
	body, err := r.call(ctx, http.MethodGet, r.url, nil)
	if err != nil {
		return err
	}
	defer body.Close()
	if err := json.NewDecoder(body).Decode(&list); err != nil {
		return err
	}
	there := map[string]bool{}
	for _, p := range list.Items {
		there[p.Metadata.UID] = true
		r.begin(ctx, p)
	}
	for _, uid := range r.known() {
		if !there[uid] {
			r.gone(uid)
		}
	}
	watched, err := r.call(ctx, http.MethodGet, r.url+"?watch=1&timeoutSeconds=600&resourceVersion="+list.Metadata.ResourceVersion, nil)
	if err != nil {
		return err
	}
	defer watched.Close()
	for events := json.NewDecoder(watched); ; {
		var event struct {
			Type   string
			Object pod
		}
		if err := events.Decode(&event); err != nil {
			return errors.Join(err, ctx.Err())
		}
		switch {
		case event.Type == "DELETED" || event.Object.Metadata.Deletion != "":
			r.gone(event.Object.Metadata.UID)
		case event.Type == "ADDED" || event.Type == "MODIFIED":
			r.begin(ctx, event.Object)
		default:
			return fmt.Errorf("the watch says %s", event.Type)
		}
	}
}

// begin runs a pod, unless it has run.
func (r *Runner) begin(ctx context.Context, p pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stops[p.Metadata.UID] != nil || p.Metadata.Deletion != "" || p.Spec.Account != Account || len(p.Spec.Containers) == 0 {
		return
	}
	ctx, stop := context.WithCancel(ctx)
	r.stops[p.Metadata.UID] = stop
	switch p.Status.Phase {
	case "Running":
		// Of a runner that was killed, which took its processes along.
		r.running.Go(func() { r.ended(ctx, p, 137, "Error", "the lab was stopped while it ran") })
	case "Pending":
		r.running.Go(func() { r.run(ctx, p) })
	}
}

func (r *Runner) known() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.stops))
}

// gone ends the process of a pod that is no more.
func (r *Runner) gone(uid string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if stop := r.stops[uid]; stop != nil {
		stop()
		delete(r.stops, uid)
	}
}

// run runs a pod to its end.
func (r *Runner) run(ctx context.Context, p pod) {
	container := p.Spec.Containers[0]
	folder := r.Dir.Path("logs", "maintenance")
	message := filepath.Join(folder, p.Metadata.Name+".message")
	code, reason := -1, "StartError"
	err := os.MkdirAll(folder, 0o755)
	if err == nil {
		err = os.WriteFile(message, nil, 0o600)
	}
	if err == nil {
		defer os.Remove(message)
		var log *os.File
		if log, err = os.Create(filepath.Join(folder, p.Metadata.Name+".log")); err == nil {
			defer log.Close()
			command := exec.CommandContext(ctx, r.Binary, append(container.Args, "--kubeconfig="+r.Dir.KubeconfigOf(Account), "--termination-log="+message)...)
			command.Env = os.Environ()
			for _, env := range container.Env {
				command.Env = append(command.Env, env.Name+"="+env.Value)
			}
			command.Stdout, command.Stderr = log, log
			// A runner that is killed takes them along.
			command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
			command.WaitDelay = grace
			if err = command.Start(); err == nil {
				r.write(ctx, p, map[string]any{
					"phase": "Running", "startTime": now(),
					"containerStatuses": r.containers(p, map[string]any{"running": map[string]any{"startedAt": now()}}),
				})
				err = command.Wait()
				if code, reason = command.ProcessState.ExitCode(), "Error"; code < 0 {
					code = 137
				}
			}
		}
	}
	said, _ := os.ReadFile(message)
	if err == nil {
		reason = "Completed"
	} else if reason == "StartError" {
		said = []byte(err.Error())
	}
	r.ended(ctx, p, code, reason, string(said[:min(len(said), messageLimit)]))
}

// ended writes what a pod came to. A pod that is gone needs none of it.
func (r *Runner) ended(ctx context.Context, p pod, code int, reason, message string) {
	fmt.Fprintf(r.Log, "%s ended with %d: %s\n", p.Metadata.Name, code, message)
	phase := "Succeeded"
	if code != 0 {
		phase = "Failed"
	}
	r.write(ctx, p, map[string]any{"phase": phase, "containerStatuses": r.containers(p, map[string]any{
		"terminated": map[string]any{"exitCode": code, "reason": reason, "message": message, "finishedAt": now()},
	})})
}

func (r *Runner) containers(p pod, state map[string]any) []any {
	return []any{map[string]any{"name": p.Spec.Containers[0].Name, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state}}
}

func now() string { return time.Now().UTC().Format(time.RFC3339) }

// write changes the status of a pod, however long that takes.
func (r *Runner) write(ctx context.Context, p pod, status map[string]any) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.Metadata.UID}, "status": status})
	for err == nil {
		var body io.ReadCloser
		if body, err = r.call(ctx, http.MethodPatch, r.url+"/"+p.Metadata.Name+"/status", patch); err == nil {
			_ = body.Close()
			return
		}
		var refused *statusError
		if ctx.Err() != nil || errors.As(err, &refused) && (refused.code == http.StatusNotFound || refused.code == http.StatusConflict) {
			return // it is gone, or the lab is about to be
		}
		fmt.Fprintln(r.Log, "writing the status of", p.Metadata.Name+":", err)
		select {
		case <-ctx.Done():
		case <-time.After(retry):
			err = nil
		}
	}
}

type statusError struct {
	code int
	body string
}

func (e *statusError) Error() string { return fmt.Sprintf("%d: %s", e.code, e.body) }

func (r *Runner) call(ctx context.Context, method, url string, body []byte) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/merge-patch+json")
	response, err := r.client.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode >= 300 {
		defer response.Body.Close()
		said, _ := io.ReadAll(io.LimitReader(response.Body, 1024))
		return nil, &statusError{code: response.StatusCode, body: string(said)}
	}
	return response.Body, nil
}
