// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/controllers/repository"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	engineinformers "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/lease"
	"github.com/holdfast-io/holdfast/pkg/restore/volumes"
)

const defaultImage = "ghcr.io/holdfast-io/holdfast:dev" // outside of a pod

// ownPod returns the controller's own pod, or nil. It uses a list, the only right on pods.
func ownPod(ctx context.Context, kube kubernetes.Interface, system string) (*corev1.Pod, error) {
	pod := os.Getenv("POD_NAME")
	if pod == "" { // with hostNetwork the host's name is another
		var err error
		if pod, err = os.Hostname(); err != nil {
			return nil, err
		}
	}
	found, err := kube.CoreV1().Pods(system).List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, pod).String()})
	if err != nil || len(found.Items) == 0 {
		return nil, err
	}
	return &found.Items[0], nil
}

func (o *controllerOptions) restoreVolumes(config *rest.Config, kube kubernetes.Interface, engine engineclient.EngineV1alpha1Interface, records engineinformers.Interface, repositories *repository.Controller, agents *lease.Agents) (*volumes.Volumes, error) {
	removing := rest.CopyConfig(config)
	removing.Impersonate = rest.ImpersonationConfig{UserName: fmt.Sprintf("system:serviceaccount:%s:holdfast-restore", o.client.namespace)}
	remover, err := kubernetes.NewForConfig(removing)
	if err != nil {
		return nil, err
	}
	return volumes.New(volumes.Config{
		Namespace:      o.client.namespace,
		Image:          func(ctx context.Context) (string, error) { return o.ownImage(ctx, kube) },
		PullSecrets:    o.restorePullSecrets,
		VolumeTimeout:  o.volumeTimeout,
		AgentTimeout:   o.agentTimeout,
		Agents:         agents,
		Repository:     repositories.Readable,
		Records:        engine,
		Runs:           engine,
		Removing:       remover.CoreV1(),
		Kube:           kube,
		Clock:          clock.RealClock{},
		RecordInformer: records.VolumeRestores(),
	})
}

// ownImage returns the image of pods that hold volumes.
func (o *controllerOptions) ownImage(ctx context.Context, kube kubernetes.Interface) (string, error) {
	if o.restoreImage != "" {
		return o.restoreImage, nil
	}
	own, err := ownPod(ctx, kube, o.client.namespace)
	if err != nil || own == nil {
		return defaultImage, err
	}
	return own.Spec.Containers[0].Image, nil
}
