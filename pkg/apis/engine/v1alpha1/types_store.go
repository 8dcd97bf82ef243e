// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=storagelocations,singular=storagelocation,shortName=hfl,scope=Namespaced,categories=holdfast-admin
// +kubebuilder:printcolumn:name="Provider",type=string,JSONPath=`.spec.provider`
// +kubebuilder:printcolumn:name="Format",type=string,JSONPath=`.spec.format`
// +kubebuilder:printcolumn:name="Available",type=string,JSONPath=`.status.conditions[?(@.type=="Available")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Available")].reason`
// +kubebuilder:printcolumn:name="Default",type=boolean,JSONPath=`.spec.default`
// +kubebuilder:printcolumn:name="Synced",type=string,JSONPath=`.status.conditions[?(@.type=="Synced")].status`
// +kubebuilder:printcolumn:name="Backups",type=integer,JSONPath=`.status.catalogue.backups`,priority=1,description="Backups that are known, as of a minute ago at most."
// +kubebuilder:printcolumn:name="Encryption",type=string,JSONPath=`.spec.encryption.objects`,priority=1
// +kubebuilder:printcolumn:name="Locked-Until",type=string,JSONPath=`.status.lock.until`,priority=1,description="Objects of backups are locked until then at least."
// +kubebuilder:printcolumn:name="As-Of",type=string,JSONPath=`.spec.s3.asOf`,priority=1
// +kubebuilder:printcolumn:name="Store",type=string,JSONPath=`.status.storeID`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Available")].message`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`

// StorageLocation is a store of backups.
type StorageLocation struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Where the store is.
	Spec StorageLocationSpec `json:"spec"`
	// Whether the store answers, and what it holds.
	// +optional
	Status StorageLocationStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true

// StorageLocationList is a list of StorageLocations.
type StorageLocationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []StorageLocation `json:"items"`
}

// StorageProvider is the kind of a store.
// +kubebuilder:validation:Enum=filesystem;s3;gcs;azure
type StorageProvider string

const (
	// StorageProviderFilesystem keeps backups in a folder.
	StorageProviderFilesystem StorageProvider = "filesystem"
	// StorageProviderS3 keeps backups in a bucket of S3 or of a store that speaks S3.
	StorageProviderS3 StorageProvider = "s3"
	// StorageProviderGCS keeps backups in a bucket of Google Cloud Storage.
	StorageProviderGCS StorageProvider = "gcs"
	// StorageProviderAzure keeps backups in a container of Azure Blob Storage.
	StorageProviderAzure StorageProvider = "azure"
)

// StorageFormat is the layout of a store.
// +kubebuilder:validation:Enum=holdfast;longhorn
type StorageFormat string

const (
	// StorageFormatHoldfast is Holdfast's own layout, which is Velero's. It is the default.
	StorageFormatHoldfast StorageFormat = "holdfast"
	// StorageFormatLonghorn is the layout of Longhorn's backup store. Its backups are listed, and
	// nothing is written to it.
	StorageFormatLonghorn StorageFormat = "longhorn"
)

// StorageLocationSpec says where a store is.
// +kubebuilder:validation:XValidation:rule="(self.provider == 'filesystem') == has(self.filesystem)",message="filesystem must be set for the provider filesystem, and only then"
// +kubebuilder:validation:XValidation:rule="(self.provider == 's3') == has(self.s3)",message="s3 must be set for the provider s3, and only then"
// +kubebuilder:validation:XValidation:rule="(self.provider == 'gcs') == has(self.gcs)",message="gcs must be set for the provider gcs, and only then"
// +kubebuilder:validation:XValidation:rule="(self.provider == 'azure') == has(self.azure)",message="azure must be set for the provider azure, and only then"
// +kubebuilder:validation:XValidation:rule="!has(self.longhorn) || self.format == 'longhorn'",message="longhorn may be set for the format longhorn only"
// +kubebuilder:validation:XValidation:rule="!(has(self.default) && self.default && self.format == 'longhorn')",message="a store of the format longhorn can't be the default: Holdfast makes no backups there"
// +kubebuilder:validation:XValidation:rule="!(has(self.recoveryKeys) && self.recoveryKeys.size() > 0 && self.format == 'longhorn')",message="recoveryKeys are for the format holdfast only: Holdfast keeps no repositories in a store of the format longhorn"
// +kubebuilder:validation:XValidation:rule="!has(self.encryption) || self.encryption.objects != 'Enabled' || self.format != 'longhorn'",message="encryption is for the format holdfast only: Holdfast writes nothing to a store of the format longhorn"
// +kubebuilder:validation:XValidation:rule="!has(self.encryption) || self.encryption.objects != 'Enabled' || has(self.recoveryKeys) && self.recoveryKeys.size() > 0",message="encryption needs recoveryKeys: without a private key outside of the cluster, encrypted backups are lost with it; see docs/install.md, A recovery key"
// +kubebuilder:validation:XValidation:rule="!has(self.s3) || !has(self.s3.asOf) || self.format != 'longhorn'",message="s3.asOf is for the format holdfast only"
// +kubebuilder:validation:XValidation:rule="!has(self.s3) || !has(self.s3.asOf) || !has(self.default) || !self.default",message="a location with s3.asOf can't be the default: nothing is written to it"
// +kubebuilder:validation:XValidation:rule="(has(self.s3) && has(self.s3.asOf)) == (has(oldSelf.s3) && has(oldSelf.s3.asOf)) && (!has(self.s3) || !has(self.s3.asOf) || self.s3.asOf == oldSelf.s3.asOf)",message="a location keeps its s3.asOf: make another one"
// +kubebuilder:validation:XValidation:rule="self.format == oldSelf.format",message="a location keeps its format: make another one"
// +kubebuilder:validation:XValidation:rule="!has(self.lock) || !has(self.s3) || !has(self.s3.asOf)",message="a location with s3.asOf takes no lock: nothing is written to it"
// +kubebuilder:validation:XValidation:rule="!has(self.lock) || self.provider == 's3'",message="lock is for the provider s3 only: Holdfast extends no locks in Google Cloud Storage, Azure or a folder; give the bucket or container a retention policy there instead"
// +kubebuilder:validation:XValidation:rule="!has(self.lock) || self.format != 'longhorn'",message="lock is for the format holdfast only: Longhorn writes the objects of a store of the format longhorn"
// +kubebuilder:validation:XValidation:rule="!has(self.lock) || !has(self.s3) || !has(self.s3.checksumAlgorithm) || self.s3.checksumAlgorithm != 'None'",message="a locked object needs a checksum: leave out s3.checksumAlgorithm, or lock"
type StorageLocationSpec struct {
	// Kind of the store: filesystem, s3, gcs or azure.
	Provider StorageProvider `json:"provider"`
	// Layout of the store: holdfast, or longhorn for a store that Longhorn writes. Longhorn's
	// backups are listed beside Holdfast's own. It does not change.
	// +optional
	// +kubebuilder:default=holdfast
	Format StorageFormat `json:"format,omitempty"`
	// For the format longhorn.
	// +optional
	Longhorn *LonghornLocation `json:"longhorn,omitempty"`
	// Whether backups that name no location are stored here. At most one location should be the
	// default; of several, the first by name counts.
	// +optional
	Default bool `json:"default,omitempty"`
	// Namespaces whose backups, schedules and restores may use this store, beside the system
	// namespace. Unset means all for a default location, and none for another.
	// +optional
	AllowedNamespaces *AllowedNamespaces `json:"allowedNamespaces,omitempty"`
	// Folder of all keys in the store, without a leading or trailing slash.
	// +optional
	// +kubebuilder:validation:Pattern=`^([^/]+(/[^/]+)*)?$`
	// +kubebuilder:validation:MaxLength=512
	Prefix string `json:"prefix,omitempty"`
	// For the provider filesystem.
	// +optional
	Filesystem *FilesystemLocation `json:"filesystem,omitempty"`
	// For the provider s3.
	// +optional
	S3 *S3Location `json:"s3,omitempty"`
	// For the provider gcs.
	// +optional
	GCS *GCSLocation `json:"gcs,omitempty"`
	// For the provider azure.
	// +optional
	Azure *AzureLocation `json:"azure,omitempty"`
	// Clusters whose backups in this store are listed in the namespaces of the same names, and
	// belong to the users with rights there. Other clusters' backups are listed in the system
	// namespace. Name this cluster only to give a recreated namespace the backups of its
	// predecessor.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	TrustedClusters []TrustedCluster `json:"trustedClusters,omitempty"`
	// Public keys of age, as age-keygen prints them. The key of each repository is written into the
	// store, encrypted for all of them. With one of the private keys, which must be in no cluster,
	// all volumes' data can be restored when this cluster is lost.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.all(key, !key.upperAscii().startsWith('AGE-SECRET-KEY-'))",message="this is a private key, which must not be in the cluster: make another pair with age-keygen, and name its public key, which begins with age1"
	// +kubebuilder:validation:XValidation:rule="self.all(key, key.upperAscii().startsWith('AGE-SECRET-KEY-') || key.matches('^age1[02-9ac-hj-np-z]{58}$'))",message="each must be a public key of age, as age-keygen prints it: 62 characters, which begin with age1"
	RecoveryKeys []string `json:"recoveryKeys,omitempty"`
	// Encryption of new backups in this store. The data of volumes is always encrypted.
	// +optional
	Encryption *StorageEncryption `json:"encryption,omitempty"`
	// Lock of the objects of backups, in a bucket with object lock: none can be removed or replaced
	// for a number of days, which are extended while a backup needs it. A change, or a removal of
	// this field, is for what is written or extended from then on.
	// +optional
	Lock *StorageLock `json:"lock,omitempty"`
	// Interval of listings of this store for other writers' backups, instead of the API server's
	// --backupstore-poll-interval. 0s is never. This cluster's backups, and syncrequests, are seen
	// in any case.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) == duration('0s') || duration(self) >= duration('1s')",message="it must be 0s, or 1s at least"
	PollInterval *metav1.Duration `json:"pollInterval,omitempty"`
	// The last request to list all of the store. Create a syncrequest to make one.
	// +optional
	SyncRequest *Ask `json:"syncRequest,omitempty"`
}

// ObjectEncryption says whether objects are encrypted.
// +kubebuilder:validation:Enum=Enabled;Disabled
type ObjectEncryption string

const (
	// ObjectEncryptionEnabled encrypts the objects of new backups.
	ObjectEncryptionEnabled ObjectEncryption = "Enabled"
	// ObjectEncryptionDisabled stores them as they are. It is the default.
	ObjectEncryptionDisabled ObjectEncryption = "Disabled"
)

// StorageEncryption says what is encrypted in a store.
type StorageEncryption struct {
	// Whether the objects of new backups, Secrets among them, are encrypted: for recoveryKeys, and
	// for a key of this cluster. Velero can't restore such a backup. Names, labels, logs and
	// messages are not encrypted. A change is for new backups; all others stay readable.
	// +optional
	// +kubebuilder:default=Disabled
	Objects ObjectEncryption `json:"objects,omitempty"`
}

// EncryptsObjects reports whether the objects of new backups are encrypted.
func (s *StorageLocationSpec) EncryptsObjects() bool {
	return s.Encryption != nil && s.Encryption.Objects == ObjectEncryptionEnabled
}

// AllowedNamespaces are the namespaces in Names or matched by Selector.
type AllowedNamespaces struct {
	// Names of namespaces. * means all.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^(\*|[a-z0-9]([-a-z0-9]*[a-z0-9])?)$`
	Names []string `json:"names,omitempty"`
	// Labels of namespaces. An empty selector matches all.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
}

// LonghornLocation has the trust in a store that Longhorn writes, and the permitted changes to it.
type LonghornLocation struct {
	// Whether volumes are listed in the namespaces that they name, and belong to the users with
	// rights there. Nothing in such a store is signed: a writer of the store can have anything
	// listed in any namespace except the system namespace. By default all are listed in the system
	// namespace.
	// +optional
	TrustNamespaces bool `json:"trustNamespaces,omitempty"`
	// Whether volumes and their backups may be deleted from the store. By default nothing in it
	// changes.
	// +optional
	AllowDeletion bool `json:"allowDeletion,omitempty"`
}

// IsLonghorn reports whether Longhorn writes the store.
func (s *StorageLocationSpec) IsLonghorn() bool { return s.Format == StorageFormatLonghorn }

// AsOf returns the instant that the store is shown at, and nil for the present. Nothing is written
// to a store at an instant.
func (s *StorageLocationSpec) AsOf() *metav1.Time {
	if s.S3 == nil {
		return nil
	}
	return s.S3.AsOf
}

// IsWritten reports whether Holdfast writes backups to the store.
func (s *StorageLocationSpec) IsWritten() bool { return !s.IsLonghorn() && s.AsOf() == nil }

const (
	// AnnotationSync of a StorageLocation requests a listing of all of the store by each change. It
	// is for users that only write manifests. status.catalogue.syncRequest then has its value.
	AnnotationSync = "holdfast.io/sync-request"
	// AnnotationGiveUpStore of a StorageLocation is the id of a store that is given up: the store
	// now at the location takes its place. It has no effect on any other id.
	AnnotationGiveUpStore = "holdfast.io/give-up-store"
	// AnnotationTakeOver of a StorageLocation is an instant in RFC 3339, not in the future. If
	// ConditionClonedCluster was True by then, this cluster continues with the store, despite the
	// other cluster's claim.
	AnnotationTakeOver = "holdfast.io/take-over-until"
	// UnknownStore stands for an id that was never read.
	UnknownStore = "unknown"
	// AnnotationAcceptLoss of a StorageLocation is an instant in RFC 3339, not in the future. All
	// backups that were missing then leave the lists.
	AnnotationAcceptLoss = "holdfast.io/accept-loss-until"
)

// AllowsDeletion reports whether the store is Longhorn's and its contents may be deleted.
func (s *StorageLocationSpec) AllowsDeletion() bool {
	return s.IsLonghorn() && s.Longhorn != nil && s.Longhorn.AllowDeletion
}

// AnnotationAcceptExpiry of a StorageLocation is an instant in RFC 3339. All its backups that have
// expired until then may be deleted.
const AnnotationAcceptExpiry = "holdfast.io/accept-expiry-until"

// TrustedCluster is a cluster with a trusted signature.
type TrustedCluster struct {
	// A name for it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// Uid of its namespace kube-system: cluster-uid in its ConfigMap holdfast-identity.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	UID string `json:"uid"`
	// A public key from its ConfigMap holdfast-identity: Ed25519, in base64. A cluster
	// with several is named once for each.
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9+/]{43}=$`
	PublicKey string `json:"publicKey"`
	// The namespaces that it is trusted for. Empty means all.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=63
	Namespaces []string `json:"namespaces,omitempty"`
}

// FilesystemLocation is a folder that every role of Holdfast sees at the same path.
type FilesystemLocation struct {
	// Absolute path of the folder. It must exist.
	// +kubebuilder:validation:Pattern=`^/`
	// +kubebuilder:validation:MaxLength=4096
	Path string `json:"path"`
}

// ChecksumAlgorithm is the checksum sent with a write.
// +kubebuilder:validation:Enum=CRC32;None
type ChecksumAlgorithm string

const (
	// ChecksumCRC32 lets the store verify the received data.
	ChecksumCRC32 ChecksumAlgorithm = "CRC32"
	// ChecksumNone relies on the connection and the signature.
	ChecksumNone ChecksumAlgorithm = "None"
)

// S3Location is a bucket.
// +kubebuilder:validation:XValidation:rule="!has(self.roleARN) || self.roleARN.size() == 0 || !has(self.credentialsSecret) || self.credentialsSecret.size() == 0",message="roleARN is assumed with the pods' own identity: leave out credentialsSecret"
// +kubebuilder:validation:XValidation:rule="!has(self.externalID) || self.externalID.size() == 0 || (has(self.roleARN) && self.roleARN.size() > 0)",message="externalID is for roleARN: set that too"
type S3Location struct {
	// Name of the bucket.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	Bucket string `json:"bucket"`
	// Region of the bucket. Default us-east-1.
	// +optional
	Region string `json:"region,omitempty"`
	// URL of the service, for stores other than AWS, as in https://s3.example.com:9000.
	// +optional
	// +kubebuilder:validation:Pattern=`^https?://[^/]+$`
	Endpoint string `json:"endpoint,omitempty"`
	// Whether the bucket is part of the path instead of the host's name.
	// +optional
	ForcePathStyle bool `json:"forcePathStyle,omitempty"`
	// Checksum sent with every write of a backup's objects: CRC32, or None for a store that refuses
	// such requests. A bucket that locks objects by default needs one. Default CRC32.
	// +optional
	ChecksumAlgorithm ChecksumAlgorithm `json:"checksumAlgorithm,omitempty"`
	// PEM certificates of the authorities for the endpoint's certificate, instead of the system's.
	// +optional
	CABundle []byte `json:"caBundle,omitempty"`
	// Name of a Secret with the keys accessKeyID and secretAccessKey, and optionally sessionToken.
	// It is in the namespace of the credentials: the system namespace's name with the suffix
	// -locations. Empty means the environment's own credentials.
	// +optional
	CredentialsSecret string `json:"credentialsSecret,omitempty"`
	// ARN of a role that each component of Holdfast assumes for this location, with its own
	// identity. The role must trust the identities of all four. Not with credentialsSecret.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:Pattern=`^(arn:[a-z0-9-]+:iam::[^:\s]*:role/\S+)?$`
	RoleARN string `json:"roleARN,omitempty"`
	// The external id that the role's trust policy asks for. It is no secret.
	// +optional
	// +kubebuilder:validation:MaxLength=1224
	// +kubebuilder:validation:Pattern=`^([\w+=,.@:/-]{2,})?$`
	ExternalID string `json:"externalID,omitempty"`
	// An instant in the past: the bucket, which must have versioning, is read as it was then. Backups
	// that were replaced or deleted since then can be restored. Nothing is written to such a
	// location. The field does not change.
	// +optional
	AsOf *metav1.Time `json:"asOf,omitempty"`
}

// GCSLocation is a bucket of Google Cloud Storage.
type GCSLocation struct {
	// Name of the bucket.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=222
	Bucket string `json:"bucket"`
	// URL of the service, as in https://storage.europe-west3.rep.googleapis.com. Default
	// https://storage.googleapis.com.
	// +optional
	// +kubebuilder:validation:Pattern=`^https?://[^/]+$`
	Endpoint string `json:"endpoint,omitempty"`
	// Name of a Secret with the key serviceAccountKey: the JSON of a service account's key. It is in
	// the namespace of the credentials: the system namespace's name with the suffix -locations.
	// Empty means the environment's own credentials, for example workload identity.
	// +optional
	CredentialsSecret string `json:"credentialsSecret,omitempty"`
}

// AzureLocation is a container of Azure Blob Storage.
type AzureLocation struct {
	// Name of the storage account. It must have no hierarchical namespace.
	// +kubebuilder:validation:Pattern=`^[a-z0-9]{3,24}$`
	StorageAccount string `json:"storageAccount"`
	// Name of the container.
	// +kubebuilder:validation:Pattern=`^[a-z0-9](-?[a-z0-9])*$`
	// +kubebuilder:validation:MinLength=3
	// +kubebuilder:validation:MaxLength=63
	Container string `json:"container"`
	// URL of the account's service, for clouds other than the public one, as in
	// https://account.blob.core.chinacloudapi.cn. Default
	// https://<storageAccount>.blob.core.windows.net.
	// +optional
	// +kubebuilder:validation:Pattern=`^https?://[^/?#]+(/[^/?#]+)?$`
	Endpoint string `json:"endpoint,omitempty"`
	// Name of a Secret with one of these: the key accountKey, the key sasToken, or the keys
	// tenantID, clientID and clientSecret. It is in the namespace of the credentials: the system
	// namespace's name with the suffix -locations. Empty means the environment's own credentials,
	// for example workload identity.
	// +optional
	CredentialsSecret string `json:"credentialsSecret,omitempty"`
}

// CredentialsSecret returns the name of the Secret with the store's credentials; empty for none.
func (s *StorageLocationSpec) CredentialsSecret() string {
	switch {
	case s.S3 != nil:
		return s.S3.CredentialsSecret
	case s.GCS != nil:
		return s.GCS.CredentialsSecret
	case s.Azure != nil:
		return s.Azure.CredentialsSecret
	}
	return ""
}

const (
	// ConditionAvailable is True while the store answers.
	ConditionAvailable = "Available"
	// ReasonReachable: the store answered.
	ReasonReachable = "Reachable"
	// ReasonUnreachable: the store did not answer, or not as a store does.
	ReasonUnreachable = "Unreachable"
	// ReasonOtherStore: the store is not the location's earlier one.
	ReasonOtherStore = "OtherStore"
	// ReasonAccessDenied: the store refused the credentials, or the access.
	ReasonAccessDenied = "AccessDenied"
	// ReasonNoSuchBucket: there is no such bucket.
	ReasonNoSuchBucket = "NoSuchBucket"
	// ReasonClockSkew: the clocks of the store and of the controller differ by too much.
	ReasonClockSkew = "ClockSkew"
	// ReasonInvalid: the location's spec, or its Secret, can't be used.
	ReasonInvalid = "Invalid"
	// ConditionClonedCluster is True while another cluster with this one's uid may write to the
	// store. Then no backup starts there, and nothing is deleted.
	ConditionClonedCluster = "ClonedCluster"
	// ReasonStateIsOlder: a controller that the cluster's records do not know has written to the
	// store. It is being watched for signs of life.
	ReasonStateIsOlder = "StateIsOlder"
	// ReasonClaimedElsewhere: it lives. An administrator must say which cluster continues.
	ReasonClaimedElsewhere = "ClaimedElsewhere"
	// ReasonClaimedHere: this cluster continues.
	ReasonClaimedHere = "ClaimedHere"
	// ConditionProbed is True if a probe could be created, read, listed and deleted in the store, and
	// False if not: its message has the failed steps. A SyncRequest asks for a probe. Its
	// observedGeneration is the location's at the probe.
	ConditionProbed = "Probed"
	// ReasonProbePassed: each step succeeded.
	ReasonProbePassed = "Passed"
	// ReasonProbeFailed: a step failed, or the clocks differ by too much.
	ReasonProbeFailed = "Failed"
	// ReasonProbeOnlyRead: nothing may be written there, so the store was listed and read only.
	ReasonProbeOnlyRead = "OnlyRead"
	// ConditionExpiryFrozen is True while no backup expires. Its message says why, and what to do.
	ConditionExpiryFrozen = "ExpiryFrozen"
	// ReasonTooManyExpired: more have expired than may within an hour, and no administrator has
	// accepted that.
	ReasonTooManyExpired = "TooMany"
	// ReasonClockDiffers: the controller's clock differs from the store's.
	ReasonClockDiffers = "ClockDiffers"
	// ReasonWithinBound: backups expire.
	ReasonWithinBound = "WithinBound"

	// ConditionSynced is True while the catalogue has the store's contents, as of the last poll.
	// Its observedGeneration is the location's at the last complete listing.
	ConditionSynced = "Synced"
	// ReasonListed: the store was listed, and new contents were read.
	ReasonListed = "Listed"
	// ReasonLoading: the store is being read for the first time.
	ReasonLoading = "Loading"
	// ReasonUnreadable: the store could not be read; the known contents are shown.
	ReasonUnreadable = "Unreadable"
	// ConditionBackupsMissing is True while the store lacks so many backups that none leaves the
	// lists. Its message has their number.
	ConditionBackupsMissing = "BackupsMissing"
	// ReasonBackupsMissing: the store lacks backups that are known.
	ReasonBackupsMissing = "BackupsMissing"
	// ReasonBackupsFound: the store lacks none, or few enough to leave the lists.
	ReasonBackupsFound = "BackupsFound"
	// ConditionMetadataReplaced is True while another writer's metadata replaces some of the
	// store's backups. Its message has their number.
	ConditionMetadataReplaced = "MetadataReplaced"
	// ReasonReplacedInStore: there are such backups.
	ReasonReplacedInStore = "ReplacedInStore"
	// ReasonNoneReplaced: they were deleted, or are as they were.
	ReasonNoneReplaced = "NoneReplaced"
	// ConditionBackupsLeftOut is True while not all backups without a trusted signature are listed.
	// Its message has the number of the others. Also while very many folders hold no backup.
	ConditionBackupsLeftOut = "BackupsLeftOut"
	// ReasonTooManyForeign: the memory for such backups is bounded.
	ReasonTooManyForeign = "TooManyForeign"
	// ReasonTooManyFolders: so many folders hold no finished backup that they take much memory.
	ReasonTooManyFolders = "TooManyFolders"
	// ReasonAllListed: all backups of the store are listed.
	ReasonAllListed = "AllListed"
)

// CatalogueStatus is the catalogue's knowledge of a store. It is written with a change of the
// conditions, else at most once a minute.
type CatalogueStatus struct {
	// Number of known backups. While the condition BackupsMissing is True, the earlier number.
	// +optional
	Backups int32 `json:"backups,omitempty"`
	// Start of the last complete listing, as of this writing.
	// +optional
	LastListTimestamp *metav1.Time `json:"lastListTimestamp,omitempty"`
	// Value of the annotation holdfast.io/sync-request that this listing has followed.
	// +optional
	SyncRequest string `json:"syncRequest,omitempty"`
}

// StorageLocationStatus is the state of a store.
type StorageLocationStatus struct {
	// Conditions: Available, Synced, BackupsMissing. MetadataReplaced, once another writer has
	// replaced a backup's metadata. ClonedCluster, once another cluster with this one's uid may
	// have written to the store. ExpiryFrozen, once expiry has stopped since too many had expired
	// at once, or the clock differed from the store's. Probed, once a SyncRequest has asked for it.
	// Locked, with a lock.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// The catalogue's knowledge of the store.
	// +optional
	Catalogue *CatalogueStatus `json:"catalogue,omitempty"`
	// Id of the store, from its object metadata/holdfast/store.json. A store with another id, or
	// without, is not used. Empty if the store has none, since it takes no writes, or is
	// Longhorn's.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	StoreID string `json:"storeID,omitempty"`
	// Until when objects are locked. Missing without a lock.
	// +optional
	Lock *StorageLockStatus `json:"lock,omitempty"`
}

// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=volumerepositories,singular=volumerepository,shortName=hfrepo,scope=Namespaced,categories=holdfast-admin
// +kubebuilder:printcolumn:name="Namespace",type=string,JSONPath=`.spec.volumeNamespace`
// +kubebuilder:printcolumn:name="Location",type=string,JSONPath=`.spec.backupStorageLocation`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Key",type=string,JSONPath=`.status.conditions[?(@.type=="KeyBackedUp")].reason`
// +kubebuilder:printcolumn:name="Size",type=string,JSONPath=`.status.size`
// +kubebuilder:printcolumn:name="Files",type=integer,JSONPath=`.status.files`
// +kubebuilder:printcolumn:name="Last-Maintenance",type=date,JSONPath=`.status.lastMaintenanceTime`
// +kubebuilder:printcolumn:name="Last-Result",type=string,JSONPath=`.status.recentMaintenance[0].result`
// +kubebuilder:printcolumn:name="Damaged",type=string,JSONPath=`.status.conditions[?(@.type=="Damaged")].status`
// +kubebuilder:printcolumn:name="Reclaimed",type=string,JSONPath=`.status.reclaimed`
// +kubebuilder:printcolumn:name="Maintained",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Maintained")].reason`
// +kubebuilder:printcolumn:name="Last-Job",type=string,priority=1,JSONPath=`.status.recentMaintenance[0].job`
// +kubebuilder:printcolumn:name="Missing-Backups",type=integer,priority=1,JSONPath=`.status.missingBackups`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Maintained")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`

// VolumeRepository is a Kopia repository with the data of one namespace's volumes in one storage
// location. Its name is NAMESPACE.LOCATION. Its key is in a Secret of the same name with the suffix
// .key, in the system namespace's name with the suffix -repositories. Without that Secret, the data
// is lost.
type VolumeRepository struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// The identity of the repository.
	Spec VolumeRepositorySpec `json:"spec"`
	// Whether the repository can be used, and its maintenance.
	// +optional
	Status VolumeRepositoryStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true

// VolumeRepositoryList is a list of VolumeRepositories.
type VolumeRepositoryList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VolumeRepository `json:"items"`
}

// VolumeRepositorySpec identifies a repository. Only its times of maintenance change.
// +kubebuilder:validation:XValidation:rule="self.volumeNamespace == oldSelf.volumeNamespace && self.backupStorageLocation == oldSelf.backupStorageLocation",message="a VolumeRepository stays the one that it is: only when it is maintained changes"
type VolumeRepositorySpec struct {
	// The namespace whose volumes the repository holds.
	VolumeNamespace string `json:"volumeNamespace"`
	// Name of the storage location.
	BackupStorageLocation string `json:"backupStorageLocation"`
	// Interval of maintenance. Default: the controller's --maintenance-frequency.
	// +optional
	MaintenanceFrequency *metav1.Duration `json:"maintenanceFrequency,omitempty"`
	// A request to maintain it now, not only when it is due. It stays after that.
	// +optional
	MaintenanceRequest *MaintenanceAsk `json:"maintenanceRequest,omitempty"`
}

// MaintenanceAsk is a request to maintain a repository now.
type MaintenanceAsk struct {
	Ask `json:",inline"`
	// Whether to read every pack, too.
	// +optional
	Verify bool `json:"verify,omitempty"`
}

const (
	// ConditionReady is True when the repository exists in the store and its key
	// opens it.
	ConditionReady = "Ready"
	// ReasonReady: the repository was opened or created.
	ReasonReady = "Ready"
	// ReasonKeyMismatch: the repository exists and its key does not open it.
	ReasonKeyMismatch = "KeyMismatch"
	// ReasonKeyMissing: the repository exists and its key's Secret is missing.
	ReasonKeyMissing = "KeyMissing"
	// ReasonDamaged: the store lacks the objects that open the repository but has its data, or has
	// lost all of it.
	ReasonDamaged = "Damaged"

	// ConditionKeyBackedUp is True if the repository's key is kept outside this cluster too. It is
	// missing until the first check.
	ConditionKeyBackedUp = "KeyBackedUp"
	// ReasonKeyWrapped: the key is in the store, encrypted for the location's recovery keys.
	ReasonKeyWrapped = "Wrapped"
	// ReasonKeyNotWrapped: the encrypted key could not be written to the store.
	ReasonKeyNotWrapped = "NotWrapped"
	// ReasonKeyExported: the key was exported. The cluster does not know where the copy is.
	ReasonKeyExported = "Exported"
	// ReasonKeyNotExported: the location has no recovery keys, and the key was not exported since
	// it was made.
	ReasonKeyNotExported = "NotExported"

	// ConditionMaintained is True if the last maintenance succeeded, and the next one is not late.
	// It is missing until the first one has ended. Its observedGeneration is behind until a
	// requested maintenance has ended.
	ConditionMaintained = "Maintained"
	// ConditionDamaged is True if the store has lost data of the repository. It is missing until
	// the first full maintenance, which checks that.
	ConditionDamaged = "Damaged"
	// ReasonDataLost: packs are missing, or have other contents than were written.
	ReasonDataLost = "DataLost"
	// ReasonNothingLost: the last check found nothing missing.
	ReasonNothingLost = "NothingLost"

	// ReasonWaiting: maintenance was requested, or has been due for a period. The message says what
	// it waits for. Otherwise the reason is the last MaintenanceResult.
	ReasonWaiting = "Waiting"
)

// Each kind of Secret is in a namespace of its own beside the system namespace. A right to read
// Secrets is for a whole namespace, except for names known beforehand. So the reader of one kind
// reads neither another nor the TLS Secrets in the system namespace.

// AgentsNamespace returns the namespace of the node agents and their Leases. It is apart so that
// agents can't change the controllers' Leases.
func AgentsNamespace(system string) string { return system + "-agents" }

// CredentialsNamespace returns the namespace of the storage locations' credentials.
func CredentialsNamespace(system string) string { return system + "-locations" }

// KeysNamespace returns the namespace of the repositories' keys.
func KeysNamespace(system string) string { return system + "-repositories" }

// MaintenanceNamespace returns the namespace of the maintenance Jobs and the repositories' Leases.
func MaintenanceNamespace(system string) string { return system + "-maintenance" }

// OwnNamespaces returns Holdfast's own namespaces. Their objects decide with whose rights is
// written, and where backups are.
func OwnNamespaces(system string) []string {
	return []string{system, AgentsNamespace(system), CredentialsNamespace(system), KeysNamespace(system), MaintenanceNamespace(system)}
}

// KeySecretName returns the name of the Secret with a repository's key.
func KeySecretName(repository string) string { return repository + ".key" }

// KeySecretKey is the key of the repository's password in its Secret.
const KeySecretKey = "repository-password"

const (
	// NextKeySecretKey is, in the same Secret, the password that the repository is about to get, or
	// has just got.
	NextKeySecretKey = "next-repository-password"
	// FormerKeysSecretKey has the last passwords before it, one a line.
	FormerKeysSecretKey = "former-repository-passwords"
)

// AnnotationKeyExported of a VolumeRepository is the fingerprint of the last exported key.
const AnnotationKeyExported = "holdfast.io/key-exported"

// RepositoryTypeKopia is the only type of a repository.
const RepositoryTypeKopia = "kopia"

// RepositoryName returns the name of a namespace's repository in a location. Namespaces have no
// dots, so two pairs never share a name.
func RepositoryName(volumeNamespace, location string) string {
	return volumeNamespace + "." + location
}

// MaintenanceResult is the result of a maintenance.
// +kubebuilder:validation:Enum=Succeeded;Failed
type MaintenanceResult string

const (
	// MaintenanceSucceeded: it was complete.
	MaintenanceSucceeded MaintenanceResult = "Succeeded"
	// MaintenanceFailed: it was not done, or not in full.
	MaintenanceFailed MaintenanceResult = "Failed"
)

// MaintenanceRun is an ended maintenance.
type MaintenanceRun struct {
	// Succeeded or Failed.
	Result MaintenanceResult `json:"result"`
	// Name of its Job.
	// +optional
	Job string `json:"job,omitempty"`
	// When it began.
	StartTimestamp metav1.Time `json:"startTimestamp"`
	// When it ended.
	CompleteTimestamp metav1.Time `json:"completeTimestamp"`
	// Summary of the work, or the reason of the failure.
	// +optional
	Message string `json:"message,omitempty"`
	// Bytes removed from the store.
	// +optional
	ReclaimedBytes int64 `json:"reclaimedBytes,omitempty"`
}

// MaxDamagedPacks and MaxAffectedSnapshots bound the names in a RepositoryDamage.
const (
	MaxDamagedPacks      = 20
	MaxAffectedSnapshots = 40
)

// MaxRecentMaintenance bounds the maintenances in a VolumeRepository.
const MaxRecentMaintenance = 25

// VolumeRepositoryStatus is the state of a repository.
type VolumeRepositoryStatus struct {
	// Time of the last successful maintenance.
	// +optional
	LastMaintenanceTime *metav1.Time `json:"lastMaintenanceTime,omitempty"`
	// Why the last maintenance failed. Empty if it succeeded.
	// +optional
	Message string `json:"message,omitempty"`
	// Size in the store, rounded up, as of the last full maintenance.
	// +optional
	Size *resource.Quantity `json:"size,omitempty"`
	// Files in the newest snapshots of the volumes, as of the last full maintenance.
	// +optional
	Files int64 `json:"files,omitempty"`
	// Bytes that the maintenances in recentMaintenance have removed from the store, rounded up.
	// +optional
	Reclaimed *resource.Quantity `json:"reclaimed,omitempty"`
	// The last maintenances, the newest first.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=25
	RecentMaintenance []MaintenanceRun `json:"recentMaintenance,omitempty"`
	// Number of backups with snapshots that the store lacked, or that did not list them, at the
	// last full maintenance. They were too many to be believed, so these snapshots stay.
	// +optional
	MissingBackups int32 `json:"missingBackups,omitempty"`
	// Time of the last comparison of the packs with the index: by a full maintenance, or on
	// request.
	// +optional
	LastCheckTime *metav1.Time `json:"lastCheckTime,omitempty"`
	// Time of the last reading of every pack.
	// +optional
	LastVerificationTime *metav1.Time `json:"lastVerificationTime,omitempty"`
	// The data that the store has lost, as of the last check. Missing if it has lost none.
	// +optional
	Damage *RepositoryDamage `json:"damage,omitempty"`
	// All blobs are locked until then at least, as of the last full maintenance, which extends their
	// locks. Missing without a lock of the location.
	// +optional
	LockedUntil *metav1.Time `json:"lockedUntil,omitempty"`
	// Fingerprint of the key: the first 32 hexadecimal digits of the SHA-256 of a key that Holdfast
	// made. It does not reveal the key.
	// +optional
	KeyFingerprint string `json:"keyFingerprint,omitempty"`
	// Conditions: Ready, KeyBackedUp, Maintained, Damaged.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// RepositoryDamage is the lost data of a repository.
type RepositoryDamage struct {
	// When it was first noticed.
	Since metav1.Time `json:"since"`
	// Packs that the store lacks, or has only in part.
	// +optional
	MissingPacks int32 `json:"missingPacks,omitempty"`
	// Packs with other contents than were written.
	// +optional
	DamagedPacks int32 `json:"damagedPacks,omitempty"`
	// Names of the packs, up to 20. Each check reads them again. The next uploads with their
	// contents store those anew.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=20
	Packs []string `json:"packs,omitempty"`
	// Indexes that the store had at the last maintenance and now lacks. Their contents are unknown,
	// snapshots included, so nothing is removed from the repository meanwhile.
	// +optional
	MissingIndexes int32 `json:"missingIndexes,omitempty"`
	// Unreadable contents of files, or of listings of folders.
	// +optional
	Contents int64 `json:"contents,omitempty"`
	// Number of snapshots that need them.
	// +optional
	AffectedSnapshots int32 `json:"affectedSnapshots,omitempty"`
	// Ids of these snapshots, if they are at most 40.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=40
	Snapshots []string `json:"snapshots,omitempty"`
	// Set if there are more, or not all could be checked: each snapshot that began until then
	// counts as one of them.
	// +optional
	AffectedUntil *metav1.Time `json:"affectedUntil,omitempty"`
}

// RestoreAccount is the ServiceAccount in the system namespace that the system namespace's restores
// write as.
const RestoreAccount = "holdfast-restore"

// RestoreUser is the user of RestoreAccount.
func RestoreUser(system string) string {
	return "system:serviceaccount:" + system + ":" + RestoreAccount
}
