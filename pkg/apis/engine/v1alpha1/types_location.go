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
	// StorageProviderS3 keeps backups in a bucket of a store that speaks S3.
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
	// StorageFormatHoldfast is Velero's layout, the default.
	StorageFormatHoldfast StorageFormat = "holdfast"
	// StorageFormatLonghorn is Longhorn's layout. Its backups are listed; nothing is written.
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
	// Layout of the store: holdfast, or longhorn for a store that Longhorn writes, whose backups
	// are listed too. Immutable.
	// +optional
	// +kubebuilder:default=holdfast
	Format StorageFormat `json:"format,omitempty"`
	// For the format longhorn.
	// +optional
	Longhorn *LonghornLocation `json:"longhorn,omitempty"`
	// Whether backups without a location are stored here. Of several default locations, the first
	// by name counts.
	// +optional
	Default bool `json:"default,omitempty"`
	// Namespaces, besides the system namespace, whose backups, schedules and restores may use this
	// store. Unset means all for a default location, else none.
	// +optional
	AllowedNamespaces *AllowedNamespaces `json:"allowedNamespaces,omitempty"`
	// Folder of all keys, without leading or trailing slash.
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
	// Clusters whose backups here are listed in the namespaces of the same names, for users with
	// rights there. Others are listed in the system namespace. Name this cluster only to give a
	// recreated namespace its predecessor's backups.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	TrustedClusters []TrustedCluster `json:"trustedClusters,omitempty"`
	// Whether administrators' restores make claims from volume snapshots that any backup in this
	// store names, also an unsigned one such as Velero's. Then a writer of the store can have any
	// volume's data restored, by naming a snapshot in the cluster's storage. Default false: only
	// backups count that this cluster signed, or one trusted with all namespaces.
	// +optional
	TrustSnapshotHandles bool `json:"trustSnapshotHandles,omitempty"`
	// Public keys of age, as age-keygen prints them. The store gets each repository's key,
	// encrypted for all of them. If this cluster is lost, one private key, which must be in no
	// cluster, suffices to restore all volume data.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.all(key, !key.upperAscii().startsWith('AGE-SECRET-KEY-'))",message="this is a private key, which must not be in the cluster: make another pair with age-keygen, and name its public key, which begins with age1"
	// +kubebuilder:validation:XValidation:rule="self.all(key, key.upperAscii().startsWith('AGE-SECRET-KEY-') || key.matches('^age1[02-9ac-hj-np-z]{58}$'))",message="each must be a public key of age, as age-keygen prints it: 62 characters, which begin with age1"
	RecoveryKeys []string `json:"recoveryKeys,omitempty"`
	// Encryption of new backups. Volume data is always encrypted.
	// +optional
	Encryption *StorageEncryption `json:"encryption,omitempty"`
	// Lock of backups' objects, in a bucket with object lock: none can be removed or replaced for a
	// number of days, extended while a backup needs it. A change or removal affects later writes
	// and extensions only.
	// +optional
	Lock *StorageLock `json:"lock,omitempty"`
	// Interval of listings of this store for other writers' backups. Default: the API server's
	// --backupstore-poll-interval. 0s is never. This cluster's backups and syncrequests are always
	// seen.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) == duration('0s') || duration(self) >= duration('1s')",message="it must be 0s, or 1s at least"
	PollInterval *metav1.Duration `json:"pollInterval,omitempty"`
	// The last request to list all of the store, made by a syncrequest.
	// +optional
	SyncRequest *Ask `json:"syncRequest,omitempty"`
}

// ObjectEncryption says whether objects are encrypted.
// +kubebuilder:validation:Enum=Enabled;Disabled
type ObjectEncryption string

const (
	// ObjectEncryptionEnabled encrypts new backups' objects.
	ObjectEncryptionEnabled ObjectEncryption = "Enabled"
	// ObjectEncryptionDisabled stores them unencrypted, the default.
	ObjectEncryptionDisabled ObjectEncryption = "Disabled"
)

// StorageEncryption says what is encrypted in a store.
type StorageEncryption struct {
	// Whether new backups' objects, Secrets among them, are encrypted, for recoveryKeys and a key
	// of this cluster. Names, labels, logs and messages are not. Velero can't restore such backups.
	// Older backups stay as they are, and readable.
	// +optional
	// +kubebuilder:default=Disabled
	Objects ObjectEncryption `json:"objects,omitempty"`
}

// EncryptsObjects reports whether new backups' objects are encrypted.
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
	// Labels of namespaces. Empty matches all.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
}

// LonghornLocation has the trust in a Longhorn store, and its permitted changes.
type LonghornLocation struct {
	// Whether volumes are listed in the namespaces that they name, for users with rights there.
	// Nothing is signed: a writer of the store can have anything listed in any namespace except the
	// system namespace. Default false: all are listed in the system namespace.
	// +optional
	TrustNamespaces bool `json:"trustNamespaces,omitempty"`
	// Whether volumes and their backups may be deleted from the store. Default false: nothing in it
	// changes.
	// +optional
	AllowDeletion bool `json:"allowDeletion,omitempty"`
}

// IsLonghorn reports whether Longhorn writes the store.
func (s *StorageLocationSpec) IsLonghorn() bool { return s.Format == StorageFormatLonghorn }

// AsOf returns the past instant at which the store is read, without writes; nil for the present.
func (s *StorageLocationSpec) AsOf() *metav1.Time {
	if s.S3 == nil {
		return nil
	}
	return s.S3.AsOf
}

// IsWritten reports whether Holdfast writes backups to the store.
func (s *StorageLocationSpec) IsWritten() bool { return !s.IsLonghorn() && s.AsOf() == nil }

const (
	// AnnotationSync of a StorageLocation requests a full listing by each change, for users that
	// only write manifests. status.catalogue.syncRequest then has its value.
	AnnotationSync = "holdfast.io/sync-request"
	// AnnotationGiveUpStore of a StorageLocation is the id of a store that is given up for the one
	// now at the location. Other ids are unaffected.
	AnnotationGiveUpStore = "holdfast.io/give-up-store"
	// AnnotationTakeOver of a StorageLocation is an RFC 3339 instant, not in the future. If
	// ConditionClonedCluster was True by then, this cluster continues with the store, despite the
	// other's claim.
	AnnotationTakeOver = "holdfast.io/take-over-until"
	// UnknownStore stands for an id that was never read.
	UnknownStore = "unknown"
	// AnnotationAcceptLoss of a StorageLocation is an RFC 3339 instant, not in the future. Backups
	// missing then leave the lists.
	AnnotationAcceptLoss = "holdfast.io/accept-loss-until"
)

// AllowsDeletion reports whether the store is Longhorn's and its contents may be deleted.
func (s *StorageLocationSpec) AllowsDeletion() bool {
	return s.IsLonghorn() && s.Longhorn != nil && s.Longhorn.AllowDeletion
}

// AnnotationAcceptExpiry of a StorageLocation is an RFC 3339 instant. Backups that expired by then
// may be deleted.
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
	// A public key from its ConfigMap holdfast-identity: Ed25519, in base64. List a cluster once
	// for each key.
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9+/]{43}=$`
	PublicKey string `json:"publicKey"`
	// Namespaces it is trusted for. Empty means all.
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
	// ReasonUnreachable: no answer, or not a store's.
	ReasonUnreachable = "Unreachable"
	// ReasonOtherStore: not the location's earlier store.
	ReasonOtherStore = "OtherStore"
	// ReasonAccessDenied: the store refused credentials or access.
	ReasonAccessDenied = "AccessDenied"
	// ReasonNoSuchBucket: no such bucket.
	ReasonNoSuchBucket = "NoSuchBucket"
	// ReasonClockSkew: the store's and controller's clocks differ too much.
	ReasonClockSkew = "ClockSkew"
	// ReasonInvalid: the location's spec or Secret can't be used.
	ReasonInvalid = "Invalid"
	// ConditionClonedCluster is True while another cluster with this one's uid may write to the
	// store. Meanwhile no backup starts, and nothing is deleted.
	ConditionClonedCluster = "ClonedCluster"
	// ReasonStateIsOlder: a controller unknown to the cluster's records has written to the store,
	// and is watched for signs of life.
	ReasonStateIsOlder = "StateIsOlder"
	// ReasonClaimedElsewhere: it lives. An administrator must say which cluster continues.
	ReasonClaimedElsewhere = "ClaimedElsewhere"
	// ReasonClaimedHere: this cluster continues.
	ReasonClaimedHere = "ClaimedHere"
	// ConditionProbed is True if a SyncRequest's probe was created, read, listed and deleted.
	// Otherwise the message has the failed steps. Its observedGeneration is the location's at the
	// probe.
	ConditionProbed = "Probed"
	// ReasonProbePassed: each step succeeded.
	ReasonProbePassed = "Passed"
	// ReasonProbeFailed: a step failed, or the clocks differ too much.
	ReasonProbeFailed = "Failed"
	// ReasonProbeOnlyRead: nothing may be written, so the store was only listed and read.
	ReasonProbeOnlyRead = "OnlyRead"
	// ConditionExpiryFrozen is True while no backup expires. Its message says why, and the remedy.
	ConditionExpiryFrozen = "ExpiryFrozen"
	// ReasonTooManyExpired: more expired than may within an hour, not accepted by an administrator.
	ReasonTooManyExpired = "TooMany"
	// ReasonClockDiffers: the controller's and store's clocks differ.
	ReasonClockDiffers = "ClockDiffers"
	// ReasonWithinBound: backups expire.
	ReasonWithinBound = "WithinBound"

	// ConditionSynced is True while the catalogue has the store's contents of the last poll. Its
	// observedGeneration is the location's at the last complete listing.
	ConditionSynced = "Synced"
	// ReasonListed: the store was listed, and new contents read.
	ReasonListed = "Listed"
	// ReasonLoading: the first reading.
	ReasonLoading = "Loading"
	// ReasonUnreadable: not readable; the known contents are shown.
	ReasonUnreadable = "Unreadable"
	// ConditionBackupsMissing is True while so many backups are missing that none leaves the lists.
	// Its message has their number.
	ConditionBackupsMissing = "BackupsMissing"
	// ReasonBackupsMissing: the store lacks known backups.
	ReasonBackupsMissing = "BackupsMissing"
	// ReasonBackupsFound: none is missing, or few enough to leave the lists.
	ReasonBackupsFound = "BackupsFound"
	// ConditionMetadataReplaced is True while another writer has replaced the metadata of some
	// backups. Its message has their number.
	ConditionMetadataReplaced = "MetadataReplaced"
	// ReasonReplacedInStore: there are such backups.
	ReasonReplacedInStore = "ReplacedInStore"
	// ReasonNoneReplaced: deleted, or as before.
	ReasonNoneReplaced = "NoneReplaced"
	// ConditionBackupsLeftOut is True while some backups without a trusted signature are not
	// listed, or very many folders hold no backup. Its message has their number.
	ConditionBackupsLeftOut = "BackupsLeftOut"
	// ReasonTooManyForeign: the memory for such backups is bounded.
	ReasonTooManyForeign = "TooManyForeign"
	// ReasonTooManyFolders: folders without a finished backup take much memory.
	ReasonTooManyFolders = "TooManyFolders"
	// ReasonAllListed: all backups are listed.
	ReasonAllListed = "AllListed"
)

// CatalogueStatus is the catalogue's knowledge of a store. It is written when conditions change,
// else at most once a minute.
type CatalogueStatus struct {
	// Number of known backups; the earlier number while BackupsMissing is True.
	// +optional
	Backups int32 `json:"backups,omitempty"`
	// Start of the last complete listing, when this was written.
	// +optional
	LastListTimestamp *metav1.Time `json:"lastListTimestamp,omitempty"`
	// The annotation holdfast.io/sync-request that this listing followed.
	// +optional
	SyncRequest string `json:"syncRequest,omitempty"`
}

// StorageLocationStatus is a store's state.
type StorageLocationStatus struct {
	// Conditions: Available, Synced, BackupsMissing. MetadataReplaced, once another writer replaced
	// a backup's metadata. ClonedCluster, once another cluster with this one's uid may have
	// written. ExpiryFrozen, once expiry stopped: too many expired at once, or the clock differed
	// from the store's. BackupsLeftOut, while some unsigned ones are not listed. Probed, after a
	// SyncRequest. Locked, with a lock.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Its state in the catalogue.
	// +optional
	Catalogue *CatalogueStatus `json:"catalogue,omitempty"`
	// Id in the store's object metadata/holdfast/store.json. A store with another id, or none, is
	// not used. Empty for a store that takes no writes, or Longhorn's.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	StoreID string `json:"storeID,omitempty"`
	// Until when objects are locked. Missing without a lock.
	// +optional
	Lock *StorageLockStatus `json:"lock,omitempty"`
}
