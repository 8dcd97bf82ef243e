// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
	// Whether administrators' restores make claims from the snapshots of volumes that any backup in
	// this store names, as Velero's do, which are not signed. A writer of the store can name any
	// snapshot of the cluster's storage, and so have the data of any volume restored. By default only
	// backups count that this cluster has signed, or one that is trusted with all namespaces.
	// +optional
	TrustSnapshotHandles bool `json:"trustSnapshotHandles,omitempty"`
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
