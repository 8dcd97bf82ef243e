// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/clustercache"
	"github.com/holdfast-io/holdfast/pkg/controllers/maintenance"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	engineinformers "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions/engine/v1alpha1"
)

type maintenanceOptions struct {
	frequency, timeout, startTimeout           time.Duration
	keep, limit                                int
	configMap                                  string
	cpuRequest, cpuLimit, memRequest, memLimit string
}

func (o *maintenanceOptions) addFlags(flags *pflag.FlagSet) {
	flags.DurationVar(&o.frequency, "maintenance-frequency", maintenance.DefaultFrequency, "Time between maintenances of a repository without its own frequency.")
	flags.DurationVar(&o.timeout, "maintenance-job-timeout", maintenance.DefaultTimeout, "Maximum time for the maintenance of a repository.")
	flags.DurationVar(&o.startTimeout, "maintenance-job-start-timeout", maintenance.DefaultStartTimeout, "Maximum time until the pod of a maintenance starts, for example to be scheduled.")
	flags.IntVar(&o.limit, "concurrent-maintenance-jobs", maintenance.DefaultLimit, "Maximum number of concurrent maintenance Jobs. 0 disables maintenance.")
	flags.IntVar(&o.keep, "keep-latest-maintenance-jobs", maintenance.DefaultKeep, "Number of ended maintenance Jobs that are kept for each repository, with their logs.")
	flags.StringVar(&o.configMap, "repo-maintenance-configmap", "", "Name of a ConfigMap in the system namespace with the resources and nodes of maintenances, for all or single repositories. It takes precedence over the other flags.")
	flags.StringVar(&o.cpuRequest, "maintenance-job-cpu-request", "0", "CPU request of a maintenance pod.")
	flags.StringVar(&o.cpuLimit, "maintenance-job-cpu-limit", "0", "CPU limit of a maintenance pod. 0 means no limit.")
	flags.StringVar(&o.memRequest, "maintenance-job-mem-request", "0", "Memory request of a maintenance pod.")
	flags.StringVar(&o.memLimit, "maintenance-job-mem-limit", "0", "Memory limit of a maintenance pod. 0 means no limit.")
}

func (o *maintenanceOptions) validate() error {
	var errs []error
	if o.configMap != "" {
		for _, problem := range validation.IsDNS1123Subdomain(o.configMap) {
			errs = append(errs, fmt.Errorf("--repo-maintenance-configmap must be the name of a ConfigMap, but is %q: %s", o.configMap, problem))
		}
	}
	if o.frequency < time.Minute {
		errs = append(errs, fmt.Errorf("--maintenance-frequency must be at least 1m, but is %s", o.frequency))
	}
	if o.timeout < time.Minute {
		errs = append(errs, fmt.Errorf("--maintenance-job-timeout must be at least 1m, but is %s", o.timeout))
	}
	if o.startTimeout <= 0 {
		errs = append(errs, fmt.Errorf("--maintenance-job-start-timeout must be positive, but is %s", o.startTimeout))
	}
	if o.limit < 0 || o.keep < 0 {
		errs = append(errs, fmt.Errorf("--concurrent-maintenance-jobs and --keep-latest-maintenance-jobs must not be negative, but are %d and %d", o.limit, o.keep))
	}
	_, err := o.resources()
	return errors.Join(append(errs, err)...)
}

func (o *maintenanceOptions) resources() (all maintenance.Resources, err error) {
	for _, of := range []struct {
		flag, value string
		into        *resource.Quantity
	}{
		{"cpu-request", o.cpuRequest, &all.CPURequest}, {"cpu-limit", o.cpuLimit, &all.CPULimit},
		{"mem-request", o.memRequest, &all.MemoryRequest}, {"mem-limit", o.memLimit, &all.MemoryLimit},
	} {
		quantity, parseErr := resource.ParseQuantity(of.value)
		if parseErr != nil || quantity.Sign() < 0 {
			err = errors.Join(err, fmt.Errorf("--maintenance-job-%s must be a quantity such as 500m or 1Gi, but is %q", of.flag, of.value))
		}
		*of.into = quantity
	}
	return all, err
}

func (o *maintenanceOptions) controller(kube kubernetes.Interface, engine engineclient.EngineV1alpha1Interface, records engineinformers.Interface, system string, recorder events.EventRecorder) (c *maintenance.Controller, factories []startable, err error) {
	resources, err := o.resources()
	if err != nil {
		return nil, nil, err
	}
	namespace := enginev1alpha1.MaintenanceNamespace(system)
	jobs := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(namespace), informers.WithTransform(clustercache.Trimmed))
	configMaps := clustercache.ConfigMap(kube, system, o.configMap)
	config := maintenance.Config{
		Namespace:          system,
		Own:                func(ctx context.Context) (*corev1.Pod, error) { return ownPod(ctx, kube, system) },
		Frequency:          o.frequency,
		Keep:               o.keep,
		Limit:              o.limit,
		Timeout:            o.timeout,
		StartTimeout:       o.startTimeout,
		Resources:          resources,
		LogFlags:           logFlags(os.Args[1:]),
		Repositories:       engine,
		Jobs:               kube.BatchV1().Jobs(namespace),
		Pods:               kube.CoreV1().Pods(namespace),
		Events:             recorder,
		Clock:              clock.RealClock{},
		RepositoryInformer: records.VolumeRepositories(),
		LocationInformer:   records.StorageLocations(),
		JobInformer:        jobs.Batch().V1().Jobs(),
	}
	if o.configMap != "" {
		config.ConfigMaps = configMaps.Core().V1().ConfigMaps().Informer()
	}
	c, err = maintenance.New(config)
	return c, []startable{jobs, configMaps}, err
}

func logFlags(args []string) (found []string) {
	for i, arg := range args {
		name, _, hasValue := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if !strings.HasPrefix(arg, "-") || name != "v" && name != "vmodule" && name != "logging-format" {
			continue
		}
		switch {
		case hasValue:
			found = append(found, arg)
		case i+1 < len(args) && !strings.HasPrefix(args[i+1], "-"):
			found = append(found, arg+"="+args[i+1])
		}
	}
	return found
}
