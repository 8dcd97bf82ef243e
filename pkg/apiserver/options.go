// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	utilcompatibility "k8s.io/apiserver/pkg/util/compatibility"
)

// Options are the flags of the API server.
type Options struct {
	recommended     *genericoptions.RecommendedOptions
	systemNamespace string
	pollInterval    time.Duration
}

// NewOptions returns Options with their defaults.
func NewOptions() *Options {
	o := &Options{
		recommended:     genericoptions.NewRecommendedOptions("", nil),
		systemNamespace: "holdfast",
		pollInterval:    time.Minute,
	}
	o.recommended.Etcd = nil // nothing that is served here is stored in etcd
	o.recommended.SecureServing.BindPort = 8443
	o.recommended.SecureServing.ServerCert.CertDirectory = "" // a self-signed certificate stays in memory
	return o
}

// AddFlags adds the options' flags.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	o.recommended.SecureServing.AddFlags(flags)
	o.recommended.Authentication.AddFlags(flags)
	o.recommended.Authorization.AddFlags(flags)
	o.recommended.Audit.AddFlags(flags)
	o.recommended.Features.AddFlags(flags)
	o.recommended.CoreAPI.AddFlags(flags)
	o.recommended.Admission.AddFlags(flags)
	flags.StringVar(&o.systemNamespace, "namespace", o.systemNamespace, "The system namespace: where Holdfast's records live, and whose backups may include any namespace.")
	flags.DurationVar(&o.pollInterval, "backupstore-poll-interval", o.pollInterval, "How often each storage location is listed for backups that others stored there. 0 lists it once, at the start.")
}

// Validate returns what is wrong with the options.
func (o *Options) Validate() error {
	errs := o.recommended.Validate()
	if o.systemNamespace == "" {
		errs = append(errs, errors.New("--namespace must not be empty"))
	}
	if o.pollInterval < 0 {
		errs = append(errs, fmt.Errorf("--backupstore-poll-interval must not be negative, but is %s", o.pollInterval))
	}
	return errors.Join(errs...)
}

// Config is the configuration that the options make.
func (o *Options) Config() (*Config, error) {
	if err := o.recommended.SecureServing.MaybeDefaultWithSelfSignedCerts("localhost", nil, nil); err != nil {
		return nil, fmt.Errorf("making a self-signed certificate: %w", err)
	}
	generic := genericapiserver.NewRecommendedConfig(Codecs)
	generic.EffectiveVersion = utilcompatibility.DefaultBuildEffectiveVersion()
	if err := o.recommended.ApplyTo(generic); err != nil {
		return nil, err
	}
	return &Config{
		Generic: generic,
		Extra:   ExtraConfig{SystemNamespace: o.systemNamespace, PollInterval: o.pollInterval},
	}, nil
}
