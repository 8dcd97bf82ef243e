// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package controlplane starts and stops etcd and the Kubernetes control plane
// of a lab. It needs no root and, without nodes, listens on loopback only.
// A control plane always starts from nothing; its data goes with it.
package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/holdfast-io/holdfast/hack/lab/process"
	"github.com/holdfast-io/holdfast/hack/lab/workdir"
)

// Config says what to start.
type Config struct {
	Dir workdir.Dir
	// Bin is the folder of the Kubernetes programs.
	Bin string
	// Address is where kube-apiserver listens: loopback, or an address that
	// the nodes reach.
	Address string
	// Nodes are the names of the real nodes to come. With any, kube-scheduler
	// runs too.
	Nodes []string
	// AuditObjects says that the audit log has the objects that were written, of
	// the runs and of the queue's ledger, and not only that they were.
	AuditObjects bool
	// AggregatorRouting says that kube-apiserver sends aggregated requests to the
	// endpoints of a Service, and not to its ClusterIP. Only with nodes.
	AggregatorRouting bool
}

// Running says whether the lab of this folder is up: its control plane was
// ready once, and every process that it needs runs.
func Running(dir workdir.Dir) (bool, error) {
	s, err := dir.State()
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if !s.Ready {
		return false, nil
	}
	for _, name := range s.Processes {
		p, err := process.Load(dir.Run(), name)
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if !p.Running() {
			return false, nil
		}
	}
	return true, nil
}

// Up starts a control plane in a folder in which none runs, and returns once
// it answers. What it started before an error runs on, for Stop.
func Up(ctx context.Context, c Config) error {
	ports, err := FreePorts(c.Address, 6)
	if err != nil {
		return err
	}
	p := plan{Config: c, etcd: ports[0], etcdPeer: ports[1], apiserver: ports[2], controllerManager: ports[3], scheduler: ports[4], etcdHTTP: ports[5]}
	state := workdir.State{Bin: c.Bin, Address: c.Address, Nodes: c.Nodes, Server: p.server()}
	// Before anything else is written: the state marks the folder as a lab's.
	if err := c.Dir.Save(state); err != nil {
		return err
	}
	if err := p.writeCredentials(time.Now()); err != nil {
		return err
	}
	if err := os.WriteFile(c.Dir.Path("audit-policy.yaml"), []byte(p.auditPolicy()), 0o644); err != nil {
		return err
	}
	for _, s := range p.steps() {
		proc, err := process.Start(c.Dir.Run(), s.spec)
		if err != nil {
			return err
		}
		state.Processes = append(state.Processes, s.spec.Name)
		if err := c.Dir.Save(state); err != nil {
			return err
		}
		if s.health == "" {
			continue
		}
		if err := proc.AwaitHealth(ctx, s.health, p.Dir.PKI("ca.crt")); err != nil {
			return err
		}
	}
	state.Ready = true
	return c.Dir.Save(state)
}

// stopGrace is short: kube-apiserver waits a minute for watchers to go, and a
// kill loses nothing, since the data goes too.
const stopGrace = 2 * time.Second

// Stop stops the control plane, each program before the one that it needs.
func Stop(ctx context.Context, dir workdir.Dir) error {
	var failed []error
	for _, name := range []string{"kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd"} {
		failed = append(failed, process.StopNamed(ctx, dir.Run(), name, stopGrace))
	}
	return errors.Join(failed...)
}

func (p plan) server() string { return fmt.Sprintf("https://%s:%d", p.Address, p.apiserver) }
