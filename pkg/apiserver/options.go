// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	utilcompatibility "k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apiserver/servingcert"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/registry/backup"
	"github.com/holdfast-io/holdfast/pkg/registry/restore"
)

const watchTerminationGracePeriod = 10 * time.Second // of watches when the server stops

// Options are the flags of the API server.
type Options struct {
	recommended     *genericoptions.RecommendedOptions
	systemNamespace string
	pollInterval    time.Duration
	cacheDir        string
	shutdownDelay   time.Duration
	limits          backup.Limits
	restores        restore.Limits
	backupTTL       time.Duration
	maxTTL          time.Duration
	snapshots       bool
	schedules       int
	volumeDeletions int
	foreignMemory   resource.QuantityValue
	nodeAgents      string // a ConfigMap
	advertise       net.IP
}

// NewOptions returns Options with their defaults.
func NewOptions() *Options {
	o := &Options{
		recommended:     genericoptions.NewRecommendedOptions("", nil),
		systemNamespace: "holdfast",
		pollInterval:    5 * time.Minute,
		limits:          backup.Limits{Waiting: 100, WaitingInSystem: 10_000, Stored: 2000},
		restores:        restore.Limits{Unfinished: 10, UnfinishedInSystem: 1000},
		backupTTL:       backup.DefaultTTL,
		maxTTL:          10 * 365 * 24 * time.Hour,
		schedules:       100,
		volumeDeletions: 1000,
		foreignMemory:   resource.QuantityValue{Quantity: *resource.NewQuantity(catalog.DefaultForeignBytes, resource.BinarySI)},
	}
	o.recommended.Etcd = nil // not used
	o.recommended.SecureServing.BindPort = 8443
	o.recommended.SecureServing.ServerCert.CertDirectory = "" // a self-made certificate stays in memory
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
	flags.IntVar(&o.limits.Waiting, "waiting-backups-per-namespace", o.limits.Waiting, "How many backups of one namespace may wait at once; another one is refused. All records of a namespace's backups may be ten times as many. 0 is no limit. The system namespace has a limit of its own.")
	flags.IntVar(&o.limits.WaitingInSystem, "waiting-backups-in-system-namespace", o.limits.WaitingInSystem, "The same for the backups of the system namespace.")
	flags.IntVar(&o.limits.Stored, "stored-backups-per-namespace", o.limits.Stored, "How many backups of one namespace may be stored; another one is refused. 0 is no limit. The system namespace has none.")
	flags.IntVar(&o.restores.Unfinished, "unfinished-restores-per-namespace", o.restores.Unfinished, "How many restores of one namespace may wait or run at once; another one is refused. All records of a namespace's restores may be fifty times as many. 0 is no limit. The system namespace has a limit of its own.")
	flags.IntVar(&o.restores.UnfinishedInSystem, "unfinished-restores-in-system-namespace", o.restores.UnfinishedInSystem, "The same for the restores of the system namespace.")
	flags.DurationVar(&o.backupTTL, "default-backup-ttl", o.backupTTL, "How long a backup is kept that does not say so in spec.ttl.")
	flags.BoolVar(&o.snapshots, "snapshots", o.snapshots, "Accept backups that ask for snapshots of volumes. The controller has the same flag.")
	flags.DurationVar(&o.maxTTL, "max-backup-ttl", o.maxTTL, "How long a backup may be kept at most, by spec.ttl and by later changes; one that asks for more is refused. 0 is no limit. The system namespace has none.")
	flags.IntVar(&o.schedules, "schedules-per-namespace", o.schedules, "How many schedules a namespace may have; another one is refused. 0 is no limit.")
	flags.IntVar(&o.volumeDeletions, "volume-deletions-per-namespace", o.volumeDeletions, "How many deletions of volumes and volume backups of one namespace may be under way at once; another one is refused. All their records, which stay for a day, may be ten times as many. 0 is no limit. The system namespace has none.")
	flags.Var(&o.foreignMemory, "foreign-backups-memory", "How much memory the lists may keep of the backups in each storage location without a trusted signature: Velero's, and the ones of clusters that the location does not trust. Beyond that the newest are listed.")
	flags.StringVar(&o.nodeAgents, "node-agent-configmap", o.nodeAgents, "Name of a ConfigMap in the system namespace that says how many volumes each node moves at once. While there is none, each moves one. The node agents need it too: here it is for what is shown of nodes whose agents say nothing.")
	flags.IPVar(&o.advertise, "advertise-address", o.advertise, "The address at which kube-apiserver reaches this replica: a pod's own. While the replica serves, it is the only one in the EndpointSlice of the Service "+serviceName+". Empty leaves the EndpointSlice to others, such as where a Service of type ExternalName leads here.")
	flags.DurationVar(&o.shutdownDelay, "shutdown-delay-duration", o.shutdownDelay, "How long to go on answering after being told to stop, while /readyz says no. Requests for backups are then refused with 503 and Retry-After, and find their way to another replica.")
	flags.StringVar(&o.cacheDir, "catalog-cache-dir", o.cacheDir, "A folder on disk where what is read of the stores is kept, so that it is there at once after a restart. Empty keeps it in memory only.")
	flags.DurationVar(&o.pollInterval, "backupstore-poll-interval", o.pollInterval, "How often each storage location is looked at for backups that others stored there, unless its spec.pollInterval says otherwise. 0 is never: it is listed at the start, and when a syncrequest asks for it.")
}

// Validate returns the errors of the options.
func (o *Options) Validate() error {
	errs := o.recommended.Validate()
	if o.systemNamespace == "" {
		errs = append(errs, errors.New("--namespace must not be empty"))
	}
	if o.pollInterval < 0 {
		errs = append(errs, fmt.Errorf("--backupstore-poll-interval must not be negative, but is %s", o.pollInterval))
	}
	if o.foreignMemory.Sign() <= 0 {
		errs = append(errs, fmt.Errorf("--foreign-backups-memory must be more than 0, but is %s", o.foreignMemory.String()))
	}
	if o.cacheDir != "" && !filepath.IsAbs(o.cacheDir) {
		errs = append(errs, fmt.Errorf("--catalog-cache-dir must be an absolute path, but is %q", o.cacheDir))
	}
	if o.limits.Stored < 0 {
		errs = append(errs, fmt.Errorf("--stored-backups-per-namespace must not be negative, but is %d", o.limits.Stored))
	}
	if o.maxTTL < 0 || o.maxTTL > 0 && o.maxTTL < o.backupTTL {
		errs = append(errs, fmt.Errorf("--max-backup-ttl must be 0, or not less than --default-backup-ttl, which is %s, but is %s", o.backupTTL, o.maxTTL))
	}
	if o.limits.Waiting < 0 || o.limits.WaitingInSystem < 0 {
		errs = append(errs, errors.New("--waiting-backups-per-namespace and --waiting-backups-in-system-namespace must not be negative"))
	}
	if o.restores.Unfinished < 0 || o.restores.UnfinishedInSystem < 0 {
		errs = append(errs, errors.New("--unfinished-restores-per-namespace and --unfinished-restores-in-system-namespace must not be negative"))
	}
	if o.schedules < 0 {
		errs = append(errs, fmt.Errorf("--schedules-per-namespace must not be negative, but is %d", o.schedules))
	}
	if o.volumeDeletions < 0 {
		errs = append(errs, fmt.Errorf("--volume-deletions-per-namespace must not be negative, but is %d", o.volumeDeletions))
	}
	if o.backupTTL < time.Second {
		errs = append(errs, fmt.Errorf("--default-backup-ttl must be at least 1s, but is %s", o.backupTTL))
	}
	if o.advertise.IsUnspecified() || o.advertise.IsLoopback() || o.advertise.IsLinkLocalUnicast() {
		errs = append(errs, fmt.Errorf("--advertise-address must be an address that others reach, but is %s", o.advertise))
	}
	if o.nodeAgents != "" {
		for _, problem := range validation.IsDNS1123Subdomain(o.nodeAgents) {
			errs = append(errs, fmt.Errorf("--node-agent-configmap must be the name of a ConfigMap, but is %q: %s", o.nodeAgents, problem))
		}
	}
	if o.shutdownDelay < 0 {
		errs = append(errs, fmt.Errorf("--shutdown-delay-duration must not be negative, but is %s", o.shutdownDelay))
	}
	return errors.Join(errs...)
}

// Config returns the configuration of the options.
func (o *Options) Config() (*Config, error) {
	generic := genericapiserver.NewRecommendedConfig(Codecs)
	generic.EffectiveVersion = utilcompatibility.DefaultBuildEffectiveVersion()
	if err := o.recommended.CoreAPI.ApplyTo(generic); err != nil {
		return nil, err
	}
	// The cluster's priority and fairness bounds this client. With its own limit, users would wait for each other.
	generic.ClientConfig.QPS = -1
	generic.ClientConfig.UserAgent = "holdfast-apiserver"
	if err := o.disableUnservedAdmission(generic.ClientConfig); err != nil {
		return nil, err
	}
	certificate, err := o.selfMade(generic.ClientConfig)
	if err != nil {
		return nil, err
	}
	generic.ShutdownDelayDuration = o.shutdownDelay
	// Ends watches, so that clients watch another replica, instead of open watches without events.
	generic.ShutdownWatchTerminationGracePeriod = watchTerminationGracePeriod
	remaining := *o.recommended
	remaining.CoreAPI = nil // applied above
	if err := remaining.ApplyTo(generic); err != nil {
		return nil, err
	}
	if serving := generic.SecureServing; serving != nil && serving.Cert != nil {
		registerMetrics(serving.Cert)
	}
	return &Config{
		Generic: generic,
		Extra: ExtraConfig{
			SystemNamespace: o.systemNamespace, PollInterval: o.pollInterval, CacheDir: o.cacheDir, ForeignBytes: o.foreignMemory.Value(), Limits: o.limits, RestoreLimits: o.restores, BackupTTL: o.backupTTL, MaxBackupTTL: o.maxTTL, Snapshots: o.snapshots, SchedulesPerNamespace: o.schedules, VolumeDeletionsPerNamespace: o.volumeDeletions,
			NodeAgentConfigMap: o.nodeAgents, Certificate: certificate,
			AdvertiseAddress: o.advertise, Port: o.recommended.SecureServing.BindPort,
		},
	}, nil
}

// selfMade returns the self-made serving certificate; nil if the flags name files.
func (o *Options) selfMade(config *rest.Config) (*servingcert.Certificate, error) {
	given := &o.recommended.SecureServing.ServerCert
	if given.CertKey.CertFile != "" || given.CertKey.KeyFile != "" {
		return nil, nil
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a client of the APIService: %w", err)
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("finding out the name of this replica: %w", err)
	}
	certificate, err := servingcert.New(servingcert.Config{
		Client:     client,
		APIService: v1alpha1.SchemeGroupVersion.Version + "." + v1alpha1.GroupName,
		DNSName:    serviceName + "." + o.systemNamespace + ".svc",
		Replica:    net.JoinHostPort(host, strconv.Itoa(o.recommended.SecureServing.BindPort)),
		Clock:      clock.RealClock{},
	})
	if err != nil {
		return nil, err
	}
	given.GeneratedCert = certificate
	return certificate, nil
}

// disableUnservedAdmission disables the admission plugin whose policies an old cluster lacks: it would wait for
// them for ever.
func (o *Options) disableUnservedAdmission(config *rest.Config) error {
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client of the cluster: %w", err)
	}
	served, err := client.ServerResourcesForGroupVersion("admissionregistration.k8s.io/v1")
	if err != nil {
		return fmt.Errorf("asking the cluster for its admission policies: %w", err)
	}
	isMutatingPolicy := func(r metav1.APIResource) bool { return r.Name == "mutatingadmissionpolicies" }
	if !slices.ContainsFunc(served.APIResources, isMutatingPolicy) {
		o.recommended.Admission.DisablePlugins = append(o.recommended.Admission.DisablePlugins, mutating.PluginName)
	}
	return nil
}
