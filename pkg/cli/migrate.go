// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apifield "k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/validation"
	"github.com/holdfast-io/holdfast/pkg/schedule"
)

var velero = schema.GroupVersion{Group: "velero.io", Version: "v1"}

type migrateFlags struct {
	system, from, to, dryRun, format string
	resume, yes                      bool
}

func (t *tool) migrateCommand() *cobra.Command {
	f := migrateFlags{}
	command := &cobra.Command{
		Use: "velero", Short: "Take over Velero's storage locations, schedules and volume policies",
		Long: `Read the BackupStorageLocations, Schedules and volume policies of Velero, and
create Holdfast's. Each field without a counterpart is named. Velero's objects stay
as they are. Schedules come paused. Stored backups of Velero are listed by the
storage location as they are, so no Backup is created.`,
		Example: `  kubectl holdfast migrate velero --dry-run=server
  kubectl holdfast migrate velero -o yaml >holdfast.yaml`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error { return t.migrate(command.Context(), &f) },
	}
	flags := command.Flags()
	flags.StringVar(&f.from, "from-namespace", "velero", "Namespace of Velero.")
	flags.StringVar(&f.to, "to-namespace", "", "Namespace of the schedules. Default: the namespace of Holdfast, where they mean the same.")
	flags.StringVar(&f.dryRun, "dry-run", "none", "Create nothing: client shows the result; server has it checked.")
	flags.StringVarP(&f.format, "output", "o", "", "Output format: yaml prints the objects, and creates nothing.")
	flags.BoolVar(&f.resume, "resume", false, "Create schedules that make backups at once, unless Velero's are paused.")
	flags.BoolVarP(&f.yes, "yes", "y", false, "Do not ask.")
	systemFlag(command, &f.system)
	return group("migrate", "Take over the objects of another backup system", command)
}

type migration struct {
	system, from, to string
	resume           bool
	server           validation.Options // snapshots count as on if the server does not say

	policies  []corev1.ConfigMap
	locations []enginev1alpha1.StorageLocation
	schedules []v1alpha1.Schedule
	notes     []note // by Velero's objects, in order
	refused   int    // objects that can't be taken over
}

type note struct{ about, text string }

func (m *migration) say(kind, name, text string, args ...any) {
	m.notes = append(m.notes, note{kind + "/" + name, fmt.Sprintf(text, args...)})
}

func (t *tool) migrate(ctx context.Context, f *migrateFlags) error {
	switch {
	case f.format != "" && f.format != "yaml":
		return usage("--output %q: want yaml", f.format)
	case !slices.Contains([]string{"none", "client", "server"}, f.dryRun):
		return usage("--dry-run %q: want none, client or server", f.dryRun)
	}
	all, err := t.clients()
	if err != nil {
		return err
	}
	_, _ = all.findSystem(ctx, &f.system) // else the default
	if f.to == "" {
		f.to = f.system
	}
	m := &migration{system: f.system, from: f.from, to: f.to, resume: f.resume}
	if err := m.read(ctx, &all); err != nil {
		return err
	}
	for _, n := range m.notes {
		fmt.Fprintf(t.ErrOut, "%s:\n", n.about)
		wrapped(t.ErrOut, "  ", n.text)
	}
	if f.format == "yaml" {
		if err := m.print(t.Out); err != nil {
			return err
		}
		return m.end()
	}
	fmt.Fprintf(t.Out, "%s, %s and %s, of which the schedules are in %s\n", counted(len(m.locations), "storage location"), counted(len(m.policies), "volume policy ConfigMap"), counted(len(m.schedules), "schedule"), m.to)
	if f.dryRun == "client" {
		return m.end()
	}
	if f.dryRun == "none" {
		if err := t.confirm(ctx, f.yes, "Create them?"); err != nil {
			return err
		}
	}
	if err := m.create(ctx, t, &all, f.dryRun == "server"); err != nil {
		return err
	}
	return m.end()
}

func (m *migration) end() error {
	if m.refused > 0 {
		return fmt.Errorf("%s of Velero's can't be taken over: the reasons are above", counted(m.refused, "object"))
	}
	return nil
}

func (m *migration) read(ctx context.Context, all *clients) error {
	client, err := dynamic.NewForConfig(all.config)
	if err != nil {
		return err
	}
	list := func(resource string) ([]unstructured.Unstructured, error) {
		found, err := client.Resource(velero.WithResource(resource)).Namespace(m.from).List(ctx, metav1.ListOptions{})
		if apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("this cluster has no %s of velero.io/v1: is Velero installed here? --context chooses another cluster", resource)
		}
		if err != nil {
			return nil, err
		}
		return found.Items, nil
	}
	stores, err := list("backupstoragelocations")
	if err != nil {
		return err
	}
	schedules, err := list("schedules")
	if err != nil {
		return err
	}
	backups, err := list("backups")
	if err != nil {
		return err
	}
	if len(stores)+len(schedules)+len(backups) == 0 {
		return fmt.Errorf("the namespace %s has no objects of Velero: name another one with --from-namespace", m.from)
	}
	for i := range stores {
		m.location(&stores[i])
	}
	if len(schedules) > 0 {
		m.askSnapshots(ctx, all)
	}
	for i := range schedules {
		m.schedule(&schedules[i])
	}
	m.unset()
	if len(backups) > 0 {
		m.notes = append(m.notes, note{"backups", fmt.Sprintf("%s in %s: none is created, since the storage location lists what its store holds (docs/catalogue.md)", counted(len(backups), "backup"), m.from)})
	}
	if err := m.readPolicies(ctx, all); err != nil {
		return err
	}
	return m.plugins(ctx, all)
}

// askSnapshots asks by a dry run whether the server lets backups make snapshots.
func (m *migration) askSnapshots(ctx context.Context, all *clients) {
	const field = "spec.template.snapshotVolumes"
	probe := &v1alpha1.Schedule{ObjectMeta: metav1.ObjectMeta{Name: "migrate-velero"}, Spec: v1alpha1.ScheduleSpec{Schedule: "@daily", Paused: true}}
	probe.Spec.Template.SnapshotVolumes = new(true)
	_, err := all.holdfast.HoldfastV1alpha1().Schedules(m.to).Create(ctx, probe, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	m.server.Snapshots = true
	var status apierrors.APIStatus
	if errors.As(err, &status) && status.Status().Details != nil {
		m.server.Snapshots = !slices.ContainsFunc(status.Status().Details.Causes, func(cause metav1.StatusCause) bool { return cause.Field == field })
	}
	if err != nil && !apierrors.IsInvalid(err) && !apierrors.IsAlreadyExists(err) {
		m.notes = append(m.notes, note{"schedules", fmt.Sprintf("whether snapshots of volumes are on in Holdfast is not known: %v. snapshotVolumes and snapshotMoveData stay, and the API server refuses them where snapshots are off", err)})
	}
}

// unset says how Holdfast reads fields that Velero's server has defaults for.
func (m *migration) unset() {
	say := func(field, text string, unset func(spec *v1alpha1.BackupSpec) bool) {
		var names []string
		for i := range m.schedules {
			if unset(&m.schedules[i].Spec.Template.BackupSpec) {
				names = append(names, m.schedules[i].Name)
			}
		}
		if len(names) > 0 {
			m.notes = append(m.notes, note{"schedules", fmt.Sprintf("%s is not set in %s. %s", field, strings.Join(names, ", "), text)})
		}
	}
	say("spec.template.defaultVolumesToFsBackup", "In Velero, --default-volumes-to-fs-backup of its server decides then. Holdfast backs up all volumes with a claim. Set true for emptyDirs and others without a claim",
		func(spec *v1alpha1.BackupSpec) bool {
			return spec.DefaultVolumesToFsBackup == nil && !ptr.Deref(spec.DefaultVolumesToRestic, false)
		})
	say("spec.template.snapshotMoveData", "In Velero, --default-snapshot-move-data of its server decides then. Holdfast moves the data of snapshots, unless its controller has this flag with false",
		func(spec *v1alpha1.BackupSpec) bool {
			return m.server.Snapshots && spec.SnapshotMoveData == nil && ptr.Deref(spec.SnapshotVolumes, true) && !ptr.Deref(spec.DefaultVolumesToFsBackup, false)
		})
}

func (m *migration) readPolicies(ctx context.Context, all *clients) error {
	for _, schedule := range m.schedules {
		policy := schedule.Spec.Template.ResourcePolicy
		if policy == nil || slices.ContainsFunc(m.policies, func(of corev1.ConfigMap) bool { return of.Name == policy.Name }) {
			continue
		}
		found, err := all.kube.CoreV1().ConfigMaps(m.from).Get(ctx, policy.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			m.say("configmap", policy.Name, "it is missing in %s, so backups of the schedule %s will fail until it is in %s", m.from, schedule.Name, m.to)
			continue
		}
		if err != nil {
			return err
		}
		m.policies = append(m.policies, corev1.ConfigMap{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
			ObjectMeta: metav1.ObjectMeta{Name: found.Name, Namespace: m.to, Labels: found.Labels}, Data: found.Data,
		})
	}
	return nil
}

// plugins names the ConfigMaps by which Velero's plugins change each restore.
func (m *migration) plugins(ctx context.Context, all *clients) error {
	const kind, marked, action = "configmap", "velero.io/plugin-config", "RestoreItemAction"
	found, err := all.kube.CoreV1().ConfigMaps(m.from).List(ctx, metav1.ListOptions{LabelSelector: marked})
	if apierrors.IsForbidden(err) {
		m.notes = append(m.notes, note{"configmaps", fmt.Sprintf("those in %s with the label %s change Velero's restores, and have no effect in Holdfast. You may not list them, so they are not named", m.from, marked)})
		return nil
	}
	if err != nil {
		return err
	}
	for i := range found.Items {
		of := &found.Items[i]
		switch {
		case len(of.Data) == 0:
		case of.Labels["velero.io/change-storage-class"] == action:
			m.say(kind, of.Name, "it has no effect. Set spec.storageClassMapping of each restore: %s", mapping(of.Data))
		case of.Labels["velero.io/change-image-name"] == action:
			m.say(kind, of.Name, "it has no effect. Set spec.imageMapping of each restore: %s. There each key is an image or its beginning up to a /, : or @, while Velero replaces any part of an image", mapping(imagesOf(of.Data)))
		default:
			m.say(kind, of.Name, "it configures a plugin of Velero, and has no effect")
		}
	}
	return nil
}

// imagesOf reads rules as OLD,NEW. Velero ignores others too.
func imagesOf(rules map[string]string) map[string]string {
	images := map[string]string{}
	for _, rule := range rules {
		before, after, _ := strings.Cut(rule, ",")
		before, after = strings.TrimSpace(before), strings.TrimSpace(after)
		if strings.HasSuffix(before, "/") && strings.HasSuffix(after, "/") {
			before, after = strings.TrimRight(before, "/"), strings.TrimRight(after, "/")
		}
		if before != "" && after != "" {
			images[before] = after
		}
	}
	return images
}

func mapping(of map[string]string) string {
	var pairs []string
	for _, key := range slices.Sorted(maps.Keys(of)) {
		pairs = append(pairs, key+": "+of[key])
	}
	return "{" + strings.Join(pairs, ", ") + "}"
}

// configFields are the known keys of a location's config, by provider. Each sets a field of the spec, or returns a
// note.
var configFields = map[enginev1alpha1.StorageProvider]map[string]func(spec *enginev1alpha1.StorageLocationSpec, value string) string{
	enginev1alpha1.StorageProviderS3: {
		"region": func(spec *enginev1alpha1.StorageLocationSpec, value string) string { spec.S3.Region = value; return "" },
		"s3Url": func(spec *enginev1alpha1.StorageLocationSpec, value string) string {
			spec.S3.Endpoint = strings.TrimSuffix(value, "/")
			return ""
		},
		"s3ForcePathStyle": func(spec *enginev1alpha1.StorageLocationSpec, value string) string {
			spec.S3.ForcePathStyle = value == "true"
			return ""
		},
		"checksumAlgorithm": func(spec *enginev1alpha1.StorageLocationSpec, value string) string {
			spec.S3.ChecksumAlgorithm = checksumOf(value)
			return ""
		},
	},
	enginev1alpha1.StorageProviderGCS: {
		"storeEndpoint": func(spec *enginev1alpha1.StorageLocationSpec, value string) string {
			spec.GCS.Endpoint = strings.TrimSuffix(strings.TrimSuffix(value, "/"), "/storage/v1")
			return ""
		},
		"serviceAccount": says("signs URLs, which Holdfast does not need. For workload identity, bind this account as docs/locations.md says"),
		"kmsKeyName":     says("has no counterpart: make it the default key of the bucket"),
	},
	enginev1alpha1.StorageProviderAzure: {
		"storageAccount": func(spec *enginev1alpha1.StorageLocationSpec, value string) string {
			spec.Azure.StorageAccount = value
			return ""
		},
		"storageAccountURI": func(spec *enginev1alpha1.StorageLocationSpec, value string) string {
			spec.Azure.Endpoint = strings.TrimSuffix(value, "/")
			return ""
		},
		"resourceGroup":               says("is not needed: the storage account's name says where it is"),
		"subscriptionId":              says("is not needed: the storage account's name says where it is"),
		"storageAccountKeyEnvVar":     says("names the line of the credentials file with the account's key: it is accountKey of the Secret"),
		"useAAD":                      says("has no counterpart: leave accountKey and sasToken out of the Secret, then the application or the pods' identity is used"),
		"blockSizeInBytes":            says("has no counterpart: blocks have 8 MB"),
		"activeDirectoryAuthorityURI": says("has no counterpart. With a cloud identity, the pods' environment has the authority, in AZURE_AUTHORITY_HOST"),
	},
}

func says(text string) func(*enginev1alpha1.StorageLocationSpec, string) string {
	return func(*enginev1alpha1.StorageLocationSpec, string) string { return text }
}

// veleroProviders are the providers of Velero's own plugins, without velero.io/.
var veleroProviders = map[string]enginev1alpha1.StorageProvider{
	"aws": enginev1alpha1.StorageProviderS3, "gcp": enginev1alpha1.StorageProviderGCS, "azure": enginev1alpha1.StorageProviderAzure,
}

// checksumOf returns Holdfast's word: Velero's empty algorithm is none.
func checksumOf(value string) enginev1alpha1.ChecksumAlgorithm {
	if value == "" {
		return enginev1alpha1.ChecksumNone
	}
	return enginev1alpha1.ChecksumCRC32
}

// location converts a BackupStorageLocation. docs/velero.md has the table.
func (m *migration) location(of *unstructured.Unstructured) {
	const kind = "backupstoragelocation"
	name := of.GetName()
	provider, _, _ := unstructured.NestedString(of.Object, "spec", "provider")
	made := enginev1alpha1.StorageLocation{
		TypeMeta:   metav1.TypeMeta{APIVersion: enginev1alpha1.SchemeGroupVersion.String(), Kind: "StorageLocation"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: m.system},
		Spec:       enginev1alpha1.StorageLocationSpec{Provider: veleroProviders[strings.TrimPrefix(provider, "velero.io/")]},
	}
	bucket, _, _ := unstructured.NestedString(of.Object, "spec", "objectStorage", "bucket")
	switch made.Spec.Provider {
	case enginev1alpha1.StorageProviderS3:
		made.Spec.S3 = &enginev1alpha1.S3Location{Bucket: bucket}
	case enginev1alpha1.StorageProviderGCS:
		made.Spec.GCS = &enginev1alpha1.GCSLocation{Bucket: bucket}
	case enginev1alpha1.StorageProviderAzure:
		made.Spec.Azure = &enginev1alpha1.AzureLocation{Container: bucket}
	default:
		m.refused++
		m.say(kind, name, "spec.provider %s is not converted: want aws, gcp or azure. It is left out, and so its backups can't be listed", provider)
		return
	}
	config, _, _ := unstructured.NestedStringMap(of.Object, "spec", "config")
	if made.Spec.Azure != nil && config["storageAccount"] == "" {
		m.refused++
		m.say(kind, name, "spec.config.storageAccount is missing, which a location of Azure needs: it is left out")
		return
	}
	for _, key := range slices.Sorted(maps.Keys(config)) {
		text := "has no counterpart: configure it in the bucket, if it is a property of the bucket"
		if apply := configFields[made.Spec.Provider][key]; apply != nil {
			text = apply(&made.Spec, config[key])
		}
		if text != "" {
			m.say(kind, name, "spec.config.%s %s", key, text)
		}
	}
	made.Spec.Prefix, _, _ = unstructured.NestedString(of.Object, "spec", "objectStorage", "prefix")
	made.Spec.Prefix = strings.Trim(made.Spec.Prefix, "/")
	made.Spec.Default, _, _ = unstructured.NestedBool(of.Object, "spec", "default")
	if text, found, _ := unstructured.NestedString(of.Object, "spec", "objectStorage", "caCert"); found && text != "" && made.Spec.S3 == nil {
		m.say(kind, name, "spec.objectStorage.caCert has no counterpart for the provider %s: its certificate must be a public one", made.Spec.Provider)
	} else if found && text != "" {
		// It is in base64 in both.
		encoded, err := json.Marshal(text)
		if err == nil {
			err = json.Unmarshal(encoded, &made.Spec.S3.CABundle)
		}
		if err != nil {
			m.say(kind, name, "spec.objectStorage.caCert can't be read: set spec.s3.caBundle")
		}
	}
	if ref, found, _ := unstructured.NestedString(of.Object, "spec", "objectStorage", "caCertRef", "name"); found && made.Spec.S3 == nil {
		m.say(kind, name, "spec.objectStorage.caCertRef has no counterpart for the provider %s: its certificate must be a public one", made.Spec.Provider)
	} else if found {
		m.say(kind, name, "spec.objectStorage.caCertRef names the Secret %s: set spec.s3.caBundle to the certificates themselves", ref)
	}
	if period, found, _ := unstructured.NestedString(of.Object, "spec", "backupSyncPeriod"); found {
		interval := &metav1.Duration{}
		if err := json.Unmarshal([]byte(fmt.Sprintf("%q", period)), interval); err != nil {
			m.say(kind, name, "spec.backupSyncPeriod %q is no duration: set spec.pollInterval", period)
		} else {
			made.Spec.PollInterval = interval
		}
	}
	if mode, _, _ := unstructured.NestedString(of.Object, "spec", "accessMode"); mode == "ReadOnly" {
		m.say(kind, name, "spec.accessMode ReadOnly has no counterpart: give the location credentials that may only read")
	}
	if _, found, _ := unstructured.NestedString(of.Object, "spec", "validationFrequency"); found {
		m.say(kind, name, "spec.validationFrequency has no counterpart: a location is checked each minute")
	}
	m.credentials(of, &made)
	m.say(kind, name, "Velero and Holdfast would share the store: set accessMode ReadOnly in Velero before the first backup, or give one of them another prefix (docs/format.md, Together with Velero)")
	m.locations = append(m.locations, made)
}

// credentials names the Secret of a location, and says how to make it from Velero's, which is a file.
func (m *migration) credentials(of *unstructured.Unstructured, made *enginev1alpha1.StorageLocation) {
	const kind = "backupstoragelocation"
	namespace := enginev1alpha1.CredentialsNamespace(m.system)
	var field *string
	var path, keys string
	switch {
	case made.Spec.S3 != nil:
		field, path, keys = &made.Spec.S3.CredentialsSecret, "s3", "the keys accessKeyID and secretAccessKey"
	case made.Spec.GCS != nil:
		field, path, keys = &made.Spec.GCS.CredentialsSecret, "gcs", "the key serviceAccountKey, which is that file if it is the key of a service account"
	case made.Spec.Azure != nil:
		field, path, keys = &made.Spec.Azure.CredentialsSecret, "azure", "the key accountKey, the key sasToken, or the keys tenantID, clientID and clientSecret, of the values in that file"
	}
	secret, found, _ := unstructured.NestedString(of.Object, "spec", "credential", "name")
	if !found {
		m.say(kind, made.Name, "it has no spec.credential of its own: unless the pods of Holdfast have a cloud identity, create a Secret in %s and name it in spec.%s.credentialsSecret", namespace, path)
		return
	}
	*field = made.Name
	m.say(kind, made.Name, "spec.credential is a file in the Secret %s. Secrets are not read: create the Secret %s in %s with %s", secret, made.Name, namespace, keys)
}

// leftOut has fields whose values the API refuses, and which may be left out.
var leftOut = map[string][]string{
	"spec.useOwnerReferencesInBackup": {"spec", "useOwnerReferencesInBackup"},
	"spec.template.snapshotVolumes":   {"spec", "template", "snapshotVolumes"},
	"spec.template.snapshotMoveData":  {"spec", "template", "snapshotMoveData"},
}

// schedule converts a Schedule. The API's own validation chooses the words.
func (m *migration) schedule(of *unstructured.Unstructured) {
	const kind = "schedule"
	name := of.GetName()
	content := map[string]any{"apiVersion": v1alpha1.SchemeGroupVersion.String(), "kind": "Schedule", "spec": runtime.DeepCopyJSONValue(of.Object["spec"])}
	made, unknown, err := scheduleOf(content)
	if err != nil {
		m.refused++
		m.say(kind, name, "it can't be read: %v", err)
		return
	}
	for _, text := range unknown {
		m.say(kind, name, "%s: the field is left out", text)
	}
	check := func() apifield.ErrorList {
		made.Name, made.Namespace, made.Labels, made.Annotations = name, m.to, of.GetLabels(), schedule.BackupAnnotations(of.GetAnnotations())
		return append(validation.ValidateSchedule(made), validation.ValidateBackupSpec(&made.Spec.Template.BackupSpec, m.server, apifield.NewPath("spec", "template"))...)
	}
	template := &made.Spec.Template.BackupSpec
	onlySnapshots := !m.server.Snapshots && !ptr.Deref(template.DefaultVolumesToFsBackup, true) && !ptr.Deref(template.DefaultVolumesToRestic, false)
	switch {
	case onlySnapshots && ptr.Deref(template.SnapshotVolumes, ptr.Deref(template.SnapshotMoveData, false)):
		m.refused++
		m.say(kind, name, "it is refused: it asks for snapshots, which are off, and defaultVolumesToFsBackup is false, so its backups would hold no volume but those that pods name in an annotation. "+
			"Turn snapshots on (snapshots.enabled of the chart, --snapshots of the API server and the controller), or remove defaultVolumesToFsBackup: false from it, so that files are backed up")
		return
	case onlySnapshots && template.SnapshotVolumes == nil:
		m.say(kind, name, "spec.template.defaultVolumesToFsBackup is false, and snapshots are off: its backups hold only volumes that pods name in an annotation, and no snapshots as Velero's may. "+
			"Turn snapshots on (docs/snapshots.md), or remove the field to back up files")
	}
	var refused apifield.ErrorList
	for _, problem := range check() {
		path := leftOut[problem.Field]
		if path == nil {
			refused = append(refused, problem)
			continue
		}
		unstructured.RemoveNestedField(content, path...)
		m.say(kind, name, "%s is left out: %s", problem.Field, problem.Detail)
	}
	if len(refused) > 0 {
		m.refused++
		m.say(kind, name, "it is refused: %v", refused.ToAggregate())
		return
	}
	if made, _, err = scheduleOf(content); err == nil {
		err = check().ToAggregate()
	}
	if err != nil {
		m.refused++
		m.say(kind, name, "it is refused: %v", err)
		return
	}
	for _, warning := range validation.BackupWarnings(&made.Spec.Template.BackupSpec, m.server, apifield.NewPath("spec", "template")) {
		m.say(kind, name, "%s", warning)
	}
	for _, key := range slices.Sorted(maps.Keys(of.GetAnnotations())) {
		switch {
		case key == "velero.io/pod-volume-timeout":
			m.say(kind, name, "metadata.annotations[%s] has no effect: --pod-volume-timeout of the controller says how long a volume may take", key)
		case strings.HasPrefix(key, "velero.io/csi-volumegroupsnapshot-class_"):
			m.say(kind, name, "metadata.annotations[%s] has no effect: each volume has a snapshot of its own", key)
		}
	}
	if !made.Spec.Paused && !m.resume {
		made.Spec.Paused = true
		m.say(kind, name, "it comes paused. Pause Velero's, and run kubectl holdfast schedule resume %s -n %s", name, m.to)
	}
	m.schedules = append(m.schedules, *made)
}

// scheduleOf decodes a Schedule, and returns its unknown fields.
func scheduleOf(content map[string]any) (made *v1alpha1.Schedule, unknown []string, err error) {
	raw, err := json.Marshal(content)
	if err != nil {
		return nil, nil, err
	}
	made = &v1alpha1.Schedule{}
	strict, err := kjson.UnmarshalStrict(raw, made)
	for _, problem := range strict {
		unknown = append(unknown, problem.Error())
	}
	return made, unknown, err
}

// manifests returns all objects, in the order of their creation.
func (m *migration) manifests() (all []any) {
	for i := range m.policies {
		all = append(all, &m.policies[i])
	}
	for i := range m.locations {
		all = append(all, &m.locations[i])
	}
	for i := range m.schedules {
		all = append(all, &m.schedules[i])
	}
	return all
}

func (m *migration) print(to io.Writer) error {
	for _, object := range m.manifests() {
		raw, err := json.Marshal(object)
		if err != nil {
			return err
		}
		var fields map[string]any
		if err := json.Unmarshal(raw, &fields); err != nil {
			return err
		}
		delete(fields, "status")
		unstructured.RemoveNestedField(fields, "metadata", "creationTimestamp")
		text, err := yaml.Marshal(fields)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(to, "---\n%s", bytes.TrimSpace(text)); err != nil {
			return err
		}
		fmt.Fprintln(to)
	}
	return nil
}

// create creates the objects that are missing.
func (m *migration) create(ctx context.Context, t *tool, all *clients, dryRun bool) error {
	options := metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}
	did := "created"
	if dryRun {
		options.DryRun, did = []string{metav1.DryRunAll}, "created (server dry run)"
	}
	var errs []error
	done := func(what string, err error) {
		switch {
		case apierrors.IsAlreadyExists(err):
			fmt.Fprintf(t.Out, "%s exists, and stays as it is\n", what)
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: %w", what, err))
		default:
			fmt.Fprintf(t.Out, "%s %s\n", what, did)
		}
	}
	for i := range m.policies {
		_, err := all.kube.CoreV1().ConfigMaps(m.to).Create(ctx, &m.policies[i], options)
		done("configmap/"+m.policies[i].Name, err)
	}
	for i := range m.locations {
		_, err := all.engine.EngineV1alpha1().StorageLocations(m.system).Create(ctx, &m.locations[i], options)
		done("storagelocation."+enginev1alpha1.GroupName+"/"+m.locations[i].Name, err)
	}
	for i := range m.schedules {
		_, err := all.holdfast.HoldfastV1alpha1().Schedules(m.to).Create(ctx, &m.schedules[i], options)
		done("schedule."+v1alpha1.GroupName+"/"+m.schedules[i].Name, err)
	}
	return errors.Join(errs...)
}
