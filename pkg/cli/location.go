// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
)

const storageLocations = "storagelocations"

const (
	accessKeyID       = "accessKeyID"
	secretAccessKey   = "secretAccessKey"
	sessionToken      = "sessionToken"
	serviceAccountKey = "serviceAccountKey" // the JSON of a Google service account's key
	accountKey        = "accountKey"
	sasToken          = "sasToken"
	tenantID          = "tenantID"
	clientID          = "clientID"
	clientSecret      = "clientSecret"
)

func (t *tool) locationCommand() *cobra.Command {
	command := group("location", "Create, read and check storage locations", t.createLocationCommand(), t.getLocationCommand(), t.checkLocationCommand())
	command.Aliases = []string{"locations"}
	return command
}

// ofEngine returns the client of the records, and their namespace.
func (t *tool) ofEngine(ctx context.Context, system string) (rest.Interface, string, error) {
	all, err := t.clients()
	if err != nil {
		return nil, "", err
	}
	_, _ = all.findSystem(ctx, &system) // else the default
	return all.engine.EngineV1alpha1().RESTClient(), system, nil
}

func (t *tool) completeLocations(system *string) func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return completeFrom(storageLocations, func(ctx context.Context) (rest.Interface, string, error) { return t.ofEngine(ctx, *system) })
}

func (t *tool) getLocationCommand() *cobra.Command {
	var o output
	var system string
	command := &cobra.Command{
		Use: "get [NAME...]", Aliases: []string{"list"}, Short: "List storage locations",
		RunE: func(command *cobra.Command, args []string) error {
			client, namespace, err := t.ofEngine(command.Context(), system)
			if err != nil {
				return err
			}
			return t.getFrom(command.Context(), client, namespace, storageLocations, args, o)
		},
	}
	command.ValidArgsFunction = t.completeLocations(&system)
	o.addTo(command, false)
	systemFlag(command, &system)
	return command
}

type locationFlags struct {
	createFlags
	system, provider, prefix, path, bucket, region, endpoint, checksum, caFile string
	secret, credentials, profile, roleARN, externalID, account, container      string
	lockMode, asOf                                                             string
	lockDays                                                                   int32
	pathStyle, isDefault, encrypt                                              bool
	allowed, recoveryKeys                                                      []string
	poll                                                                       time.Duration
}

func (f *locationFlags) apply(spec *enginev1alpha1.StorageLocationSpec) error {
	if f.provider == "" && spec.Provider == "" {
		switch {
		case f.bucket != "":
			f.provider = string(enginev1alpha1.StorageProviderS3)
		case f.container != "":
			f.provider = string(enginev1alpha1.StorageProviderAzure)
		case f.path != "":
			f.provider = string(enginev1alpha1.StorageProviderFilesystem)
		default:
			return usage("set --bucket for a bucket, --container for a container of Azure, or --path for a folder")
		}
	}
	if f.provider != "" {
		spec.Provider = enginev1alpha1.StorageProvider(f.provider)
	}
	if spec.Provider != enginev1alpha1.StorageProviderFilesystem && f.path != "" {
		return usage("a bucket has no --path: use --prefix")
	}
	if spec.Provider != enginev1alpha1.StorageProviderS3 && (f.region+f.checksum+f.caFile+f.roleARN+f.externalID != "" || f.pathStyle) {
		return usage("--region, --checksum-algorithm, --ca-file, --force-path-style, --role-arn and --external-id are for the provider s3: leave them out")
	}
	if isAzure := spec.Provider == enginev1alpha1.StorageProviderAzure; isAzure && f.bucket != "" || !isAzure && f.account+f.container != "" {
		return usage("--storage-account and --container are for the provider azure, and --bucket for s3 and gcs")
	}
	switch spec.Provider {
	case enginev1alpha1.StorageProviderS3:
		if spec.S3 == nil {
			spec.S3 = &enginev1alpha1.S3Location{}
		}
		setIfGiven(map[*string]string{&spec.S3.Bucket: f.bucket, &spec.S3.Region: f.region, &spec.S3.Endpoint: f.endpoint, (*string)(&spec.S3.ChecksumAlgorithm): f.checksum, &spec.S3.CredentialsSecret: f.secret, &spec.S3.RoleARN: f.roleARN, &spec.S3.ExternalID: f.externalID})
		if f.pathStyle {
			spec.S3.ForcePathStyle = true
		}
		if f.caFile != "" {
			bundle, err := os.ReadFile(f.caFile)
			if err != nil {
				return err
			}
			spec.S3.CABundle = bundle
		}
		if spec.S3.Bucket == "" {
			return usage("set --bucket")
		}
		if spec.S3.RoleARN != "" && spec.S3.CredentialsSecret != "" {
			return usage("a role is assumed with the pods' own identity: leave out the credentials, or --role-arn")
		}
	case enginev1alpha1.StorageProviderGCS:
		if spec.GCS == nil {
			spec.GCS = &enginev1alpha1.GCSLocation{}
		}
		setIfGiven(map[*string]string{&spec.GCS.Bucket: f.bucket, &spec.GCS.Endpoint: f.endpoint, &spec.GCS.CredentialsSecret: f.secret})
		if spec.GCS.Bucket == "" {
			return usage("set --bucket")
		}
	case enginev1alpha1.StorageProviderAzure:
		if spec.Azure == nil {
			spec.Azure = &enginev1alpha1.AzureLocation{}
		}
		setIfGiven(map[*string]string{&spec.Azure.StorageAccount: f.account, &spec.Azure.Container: f.container, &spec.Azure.Endpoint: f.endpoint, &spec.Azure.CredentialsSecret: f.secret})
		if spec.Azure.StorageAccount == "" || spec.Azure.Container == "" {
			return usage("set --storage-account and --container")
		}
	case enginev1alpha1.StorageProviderFilesystem:
		if f.bucket+f.endpoint+f.secret+f.credentials != "" {
			return usage("a folder has no bucket, endpoint or credentials: leave out the flags for buckets")
		}
		if f.path != "" {
			spec.Filesystem = &enginev1alpha1.FilesystemLocation{Path: f.path}
		}
		if spec.Filesystem == nil {
			return usage("set --path")
		}
	default:
		return usage("--provider %q: want s3, gcs, azure or filesystem", f.provider)
	}
	if f.prefix != "" {
		spec.Prefix = f.prefix
	}
	if f.isDefault {
		spec.Default = true
	}
	if len(f.allowed) > 0 {
		spec.AllowedNamespaces = &enginev1alpha1.AllowedNamespaces{Names: f.allowed}
	}
	set(&spec.RecoveryKeys, f.recoveryKeys)
	if f.encrypt {
		spec.Encryption = &enginev1alpha1.StorageEncryption{Objects: enginev1alpha1.ObjectEncryptionEnabled}
	}
	if spec.EncryptsObjects() && len(spec.RecoveryKeys) == 0 {
		return usage("--encrypt-objects needs --recovery-key: without a private key outside of the cluster, encrypted backups are lost with it")
	}
	if err := f.applyLock(spec); err != nil {
		return err
	}
	if f.poll > 0 {
		spec.PollInterval = &metav1.Duration{Duration: f.poll}
	}
	return nil
}

// applyLock sets the lock and the instant of the flags. The API server checks them.
func (f *locationFlags) applyLock(spec *enginev1alpha1.StorageLocationSpec) error {
	if f.lockMode != "" || f.lockDays != 0 {
		if f.lockMode == "" || f.lockDays == 0 {
			return usage("set both --lock-mode and --lock-days")
		}
		spec.Lock = &enginev1alpha1.StorageLock{Mode: enginev1alpha1.LockMode(f.lockMode), Days: f.lockDays}
	}
	if f.asOf == "" {
		return nil
	}
	at, err := time.Parse(time.RFC3339, f.asOf)
	if err != nil {
		return usage("--as-of %q: want a time as 2026-11-27T10:00:00Z", f.asOf)
	}
	if spec.S3 == nil {
		return usage("--as-of: only buckets of S3 are shown as of an earlier time")
	}
	spec.S3.AsOf = &metav1.Time{Time: at}
	return nil
}

// providerOf returns the provider of the flags, else of a spec.
func (f *locationFlags) providerOf(spec *enginev1alpha1.StorageLocationSpec) enginev1alpha1.StorageProvider {
	if f.provider == "" && spec.Provider == "" && f.container != "" {
		return enginev1alpha1.StorageProviderAzure
	}
	return enginev1alpha1.StorageProvider(cmp.Or(f.provider, string(spec.Provider)))
}

func setIfGiven(fields map[*string]string) {
	for to, from := range fields {
		if from != "" {
			*to = from
		}
	}
}

// readCredentials reads a provider's credentials from a file, as a Secret has them.
func readCredentials(provider enginev1alpha1.StorageProvider, path, profile string) (map[string][]byte, error) {
	switch provider {
	case enginev1alpha1.StorageProviderAzure:
		return readVariables(path)
	case enginev1alpha1.StorageProviderGCS:
	default:
		return readProfile(path, profile)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var account struct {
		Type       string `json:"type"`
		PrivateKey string `json:"private_key"`
	}
	if err := json.Unmarshal(content, &account); err != nil || account.Type != "service_account" || account.PrivateKey == "" {
		// No message quotes the file.
		return nil, fmt.Errorf("%s: it is not the key of a service account: want the JSON file that Google Cloud gives for one", path)
	}
	return map[string][]byte{serviceAccountKey: content}, nil
}

// azureVariables has the variables of a credentials file, with the keys of a Secret.
var azureVariables = map[string]string{
	"AZURE_STORAGE_ACCOUNT_ACCESS_KEY": accountKey, "AZURE_STORAGE_SAS_TOKEN": sasToken,
	"AZURE_TENANT_ID": tenantID, "AZURE_CLIENT_ID": clientID, "AZURE_CLIENT_SECRET": clientSecret,
}

// readVariables reads credentials for Azure from lines NAME=VALUE. It ignores other names.
func readVariables(path string) (map[string][]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	data := map[string][]byte{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "export "), "=")
		if key, value := azureVariables[strings.TrimSpace(name)], strings.Trim(strings.TrimSpace(value), `"'`); key != "" && value != "" {
			data[key] = []byte(value)
		}
	}
	has := func(key string) bool { return len(data[key]) > 0 }
	if !has(accountKey) && !has(sasToken) && !(has(tenantID) && has(clientID) && has(clientSecret)) {
		// No message quotes the file.
		return nil, fmt.Errorf("%s: it has no credentials for Azure: want lines with AZURE_STORAGE_ACCOUNT_ACCESS_KEY=..., with AZURE_STORAGE_SAS_TOKEN=..., or with AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET", path)
	}
	return data, nil
}

// readProfile reads a profile of a credentials file of AWS.
func readProfile(path, profile string) (map[string][]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	data := map[string][]byte{}
	names := map[string]string{"aws_access_key_id": accessKeyID, "aws_secret_access_key": secretAccessKey, "aws_session_token": sessionToken}
	in := ""
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		line := strings.TrimSpace(lines.Text())
		if strings.HasPrefix(line, "[") && strings.HasSuffix(line, "]") {
			in = strings.TrimPrefix(strings.TrimSpace(line[1:len(line)-1]), "profile ")
			continue
		}
		name, value, found := strings.Cut(line, "=")
		if key := names[strings.ToLower(strings.TrimSpace(name))]; found && in == profile && key != "" {
			data[key] = []byte(strings.TrimSpace(value))
		}
	}
	if len(data[accessKeyID]) == 0 || len(data[secretAccessKey]) == 0 {
		// No message quotes the file.
		return nil, fmt.Errorf("%s: the profile [%s] lacks aws_access_key_id or aws_secret_access_key: want the credentials file of AWS, or choose a profile with --profile", path, profile)
	}
	return data, nil
}

func (t *tool) createLocationCommand() *cobra.Command {
	var f locationFlags
	command := &cobra.Command{
		Use: "create NAME", Short: "Create a storage location",
		Long: `Create a storage location in the namespace of Holdfast. With --credentials-file, a
Secret for it is created too. Without credentials the pods' own identity is used.`,
		Example: `  # A bucket of AWS, with the credentials in a file
  kubectl holdfast location create offsite --bucket backups --region eu-central-1 --credentials-file ~/.aws/credentials
  # Another store with the S3 protocol, with an existing Secret in holdfast-locations
  kubectl holdfast location create minio --bucket backups --endpoint https://minio:9000 --force-path-style --credentials-secret minio
  # A bucket of AWS, with a role that the pods assume
  kubectl holdfast location create offsite --bucket backups --region eu-central-1 --role-arn arn:aws:iam::111122223333:role/backups
  # A bucket of Google Cloud Storage, with the identity of the pods
  kubectl holdfast location create offsite --provider gcs --bucket backups
  # A container of Azure Blob Storage, with the account's key in a file
  kubectl holdfast location create offsite --storage-account account --container backups --credentials-file azure.env
  # A bucket whose objects are locked
  kubectl holdfast location create offsite --bucket backups --lock-mode governance --lock-days 30
  # The same bucket as it was before an attack
  kubectl holdfast location create before --bucket backups --as-of 2026-11-27T10:00:00Z
  # A folder
  kubectl holdfast location create nfs --path /backups --default`,
		Args: func(command *cobra.Command, args []string) error {
			if len(args) > 1 || len(args) == 0 && f.file == "" {
				return usage("got %d names, want one: %s", len(args), command.UseLine())
			}
			return nil
		},
		RunE: func(command *cobra.Command, args []string) error {
			return t.createLocation(command.Context(), &f, args)
		},
	}
	flags := command.Flags()
	f.addTo(flags, false)
	flags.StringVar(&f.provider, "provider", "", "Kind of the store: s3, gcs, azure or filesystem. Default: s3 with --bucket, azure with --container, filesystem with --path.")
	flags.StringVar(&f.bucket, "bucket", "", "Name of the bucket.")
	flags.StringVar(&f.account, "storage-account", "", "Name of the storage account of Azure.")
	flags.StringVar(&f.container, "container", "", "Name of the container of Azure.")
	flags.StringVar(&f.region, "region", "", "Region of the bucket in S3. Default: us-east-1.")
	flags.StringVar(&f.endpoint, "endpoint", "", "URL of the service, for stores other than AWS, regions of Google Cloud Storage, and other clouds of Azure.")
	flags.BoolVar(&f.pathStyle, "force-path-style", false, "In S3, the bucket is a part of the path, and not of the host.")
	flags.StringVar(&f.checksum, "checksum-algorithm", "", "Checksum of each write to S3: CRC32 or None. Default: CRC32.")
	flags.StringVar(&f.caFile, "ca-file", "", "File with the certificates of the authorities for an endpoint of S3.")
	flags.StringVar(&f.secret, "credentials-secret", "", "Name of the Secret with the credentials. It is created with --credentials-file, and else must exist.")
	flags.StringVar(&f.credentials, "credentials-file", "", "Credentials file of AWS, the JSON key of a Google service account, or lines AZURE_...=VALUE, from which the Secret is created.")
	flags.StringVar(&f.profile, "profile", "default", "Profile of AWS's credentials file.")
	flags.StringVar(&f.roleARN, "role-arn", "", "ARN of a role that the pods assume with their own identity, for this location.")
	flags.StringVar(&f.externalID, "external-id", "", "External id that the role's trust policy asks for.")
	flags.StringVar(&f.path, "path", "", "Absolute path of a folder that all pods of Holdfast have.")
	flags.StringVar(&f.prefix, "prefix", "", "Folder of all keys in the store.")
	flags.BoolVar(&f.isDefault, "default", false, "Backups that name no location are stored here.")
	flags.StringSliceVar(&f.allowed, "allowed-namespaces", nil, "Namespaces that may use it, or *. Default: all for the default location, else the namespace of Holdfast.")
	flags.StringSliceVar(&f.recoveryKeys, "recovery-key", nil, "Public key of age, for which the repositories' keys are encrypted. Repeat the flag for more.")
	flags.BoolVar(&f.encrypt, "encrypt-objects", false, "The objects of new backups are encrypted, for the recovery keys and for a key of the cluster. Velero can't restore them.")
	flags.StringVar(&f.lockMode, "lock-mode", "", "Objects of backups are locked in S3: governance or compliance. Needs a bucket with object lock, and --lock-days.")
	flags.Int32Var(&f.lockDays, "lock-days", 0, "For how many days objects are locked, and extended while a backup needs them: 2 or more.")
	flags.StringVar(&f.asOf, "as-of", "", "Show a bucket with versions as it was at this time, to restore after an attack. Nothing is written there. Example: 2026-11-27T10:00:00Z.")
	flags.DurationVar(&f.poll, "poll-interval", 0, "How often the store is listed for backups of others. Default: the cluster's.")
	systemFlag(command, &f.system)
	return command
}

func (t *tool) createLocation(ctx context.Context, f *locationFlags, args []string) error {
	if err := f.check(); err != nil {
		return err
	}
	all, err := t.clients()
	if err != nil {
		return err
	}
	if f.dryRun != "client" {
		_, _ = all.findSystem(ctx, &f.system) // else the default
	} else if f.system == "" {
		f.system = defaultSystem
	}
	of := &enginev1alpha1.StorageLocation{}
	if err := f.read(ctx, t.In, of); err != nil {
		return err
	}
	of.TypeMeta = metav1.TypeMeta{APIVersion: enginev1alpha1.SchemeGroupVersion.String(), Kind: "StorageLocation"}
	f.meta(&of.ObjectMeta, args, f.system, "location")
	var secret *corev1.Secret
	if f.credentials != "" {
		data, err := readCredentials(f.providerOf(&of.Spec), f.credentials, f.profile)
		if err != nil {
			return err
		}
		if f.secret == "" {
			f.secret = of.Name
		}
		secret = &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: f.secret, Namespace: enginev1alpha1.CredentialsNamespace(of.Namespace), Labels: map[string]string{format.LabelExclude: "true"}},
			Type:       corev1.SecretTypeOpaque, Data: data,
		}
	}
	if err := f.apply(&of.Spec); err != nil {
		return err
	}
	if f.dryRun == "client" {
		return t.printLocation(of, f.format, "created (dry run)")
	}
	locations := all.engine.EngineV1alpha1().StorageLocations(of.Namespace)
	// The API server checks the location before the first write.
	checked, err := locations.Create(ctx, of, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict, DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		return err
	}
	if secret != nil {
		if _, err := all.kube.CoreV1().Secrets(secret.Namespace).Create(ctx, secret, f.options()); apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("%w\nTo use it as it is, leave out --credentials-file and set --credentials-secret %s", err, secret.Name)
		} else if err != nil {
			return err
		}
	}
	if f.dryRun == "server" {
		return t.printLocation(checked, f.format, "created (server dry run)")
	}
	made, err := locations.Create(ctx, of, f.options())
	if err != nil {
		if secret != nil {
			err = fmt.Errorf("%w\nThe Secret %s in %s was created, and stays", err, secret.Name, secret.Namespace)
		}
		return err
	}
	if err := t.printLocation(made, f.format, "created"); err != nil {
		return err
	}
	fmt.Fprintf(t.ErrOut, "Check that it can be reached: kubectl holdfast location check %s\n", made.Name)
	return nil
}

func (t *tool) printLocation(of *enginev1alpha1.StorageLocation, format, did string) error {
	of.TypeMeta = metav1.TypeMeta{APIVersion: enginev1alpha1.SchemeGroupVersion.String(), Kind: "StorageLocation"}
	if format == "" {
		fmt.Fprintf(t.Out, "storagelocation.%s/%s %s\n", enginev1alpha1.GroupName, of.Name, did)
		return nil
	}
	raw, err := json.Marshal(of)
	if err != nil {
		return err
	}
	return t.printRaw(raw, storageLocations, format)
}

func (t *tool) checkLocationCommand() *cobra.Command {
	var system string
	var timeout time.Duration
	command := &cobra.Command{
		Use: "check NAME", Short: "Have a storage location checked now, and show the result",
		Long: `Have the controller open the store, list it and read its id. Then it writes a probe
there, tries to write it again, which the store must refuse, reads, lists and
deletes it, and compares the clocks. Each failed step is named, with the right that
it needs. The API server lists all of the store. The results are in the conditions
of the location. The exit code is 1 if the location is not available, or the probe
failed.`,
		Args: oneName,
		RunE: func(command *cobra.Command, args []string) error {
			return t.checkLocation(command.Context(), system, args[0], timeout)
		},
	}
	command.ValidArgsFunction = t.completeLocations(&system)
	command.Flags().DurationVar(&timeout, "timeout", 30*time.Second, "Maximum time to wait for the result.")
	systemFlag(command, &system)
	return command
}

func (t *tool) checkLocation(ctx context.Context, system, name string, timeout time.Duration) error {
	all, err := t.clients()
	if err != nil {
		return err
	}
	_, _ = all.findSystem(ctx, &system) // else the default
	locations := all.engine.EngineV1alpha1().StorageLocations(system)
	of, err := locations.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	state := func(what string) metav1.Condition { return conditionOf(of.Status.Conditions, what) }
	await := func(ctx context.Context, done func() bool) error {
		return wait.PollUntilContextTimeout(ctx, queuePause, timeout, true, func(ctx context.Context) (bool, error) {
			read, err := locations.Get(ctx, name, metav1.GetOptions{})
			// The client itself refuses a request that its rate limiter would delay beyond the deadline.
			if end, _ := ctx.Deadline(); err != nil && time.Until(end) < time.Second {
				return false, nil
			}
			if err != nil {
				return false, err
			}
			of = read
			return done(), nil
		})
	}
	asked, err := all.holdfast.HoldfastV1alpha1().SyncRequests(system).Create(ctx, &v1alpha1.SyncRequest{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		fmt.Fprintf(t.ErrOut, "It can't be checked now, so this is the result of the last check: %v\n", err)
	} else if err := await(ctx, func() bool {
		available := state(enginev1alpha1.ConditionAvailable)
		return available.ObservedGeneration >= asked.Status.Generation &&
			(available.Status != metav1.ConditionTrue || state(enginev1alpha1.ConditionProbed).ObservedGeneration >= asked.Status.Generation)
	}); err != nil {
		if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
			what := "checked it"
			if state(enginev1alpha1.ConditionAvailable).ObservedGeneration >= asked.Status.Generation {
				what = "probed it, though it is available: an earlier version makes no probes"
			}
			return &exitError{ExitTimeout, fmt.Errorf("after %s the controller has not %s: look at it by kubectl holdfast doctor", timeout, what)}
		}
		return err
	}
	said := func(what string) string {
		condition := state(what)
		if condition.Status == "" {
			return ""
		}
		return strings.TrimSpace(fmt.Sprintf("%s %s: %s", condition.Status, condition.Reason, condition.Message))
	}
	fields := []field{{"Name", of.Name}, {"Available", said(enginev1alpha1.ConditionAvailable)}, {"Probed", said(enginev1alpha1.ConditionProbed)},
		{"Store", of.Status.StoreID}, {"Synced", said(enginev1alpha1.ConditionSynced)}}
	if of.Status.Catalogue != nil {
		fields = append(fields, field{"Backups", fmt.Sprint(of.Status.Catalogue.Backups)}, field{"Listed", at(of.Status.Catalogue.LastListTimestamp)})
	}
	if of.Spec.EncryptsObjects() {
		fields = append(fields, field{"Encrypted", "the objects of new backups, for the recovery keys " + strings.Join(of.Spec.RecoveryKeys, ", ")})
	}
	fields = append(fields, field{"Locked", lockOf(of)})
	s := &reportPart{}
	d := &doctor{t: t, now: time.Now, clients: all, system: system}
	d.checkLocation(s, of)
	for _, f := range s.Findings {
		fields = append(fields, field{string(f.Severity), f.Problem}, field{"remedy", f.Remedy})
	}
	if err := printFields(t.Out, fields...); err != nil {
		return err
	}
	if state(enginev1alpha1.ConditionAvailable).Status != metav1.ConditionTrue {
		return fmt.Errorf("the storage location %s is not available", name)
	}
	if state(enginev1alpha1.ConditionProbed).Status == metav1.ConditionFalse {
		return fmt.Errorf("the probe of the storage location %s failed", name)
	}
	return nil
}
