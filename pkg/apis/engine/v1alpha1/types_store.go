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
// +kubebuilder:printcolumn:name="Store",type=string,JSONPath=`.status.storeID`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Available")].message`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`

// StorageLocation is a store: where backups are kept.
type StorageLocation struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Where the store is.
	Spec StorageLocationSpec `json:"spec"`
	// Whether it can be reached.
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
// +kubebuilder:validation:Enum=filesystem;s3
type StorageProvider string

const (
	// StorageProviderFilesystem keeps backups in a folder.
	StorageProviderFilesystem StorageProvider = "filesystem"
	// StorageProviderS3 keeps backups in a bucket of S3 or of a store that speaks S3.
	StorageProviderS3 StorageProvider = "s3"
)

// StorageFormat is how backups lie in a store.
// +kubebuilder:validation:Enum=holdfast;longhorn
type StorageFormat string

const (
	// StorageFormatHoldfast is Holdfast's own, which is Velero's. It is the default.
	StorageFormatHoldfast StorageFormat = "holdfast"
	// StorageFormatLonghorn is that of Longhorn's backup store. Its backups are listed, and
	// nothing is written to it.
	StorageFormatLonghorn StorageFormat = "longhorn"
)

// StorageLocationSpec says where a store is.
// +kubebuilder:validation:XValidation:rule="(self.provider == 'filesystem') == has(self.filesystem)",message="filesystem must be set for the provider filesystem, and only then"
// +kubebuilder:validation:XValidation:rule="(self.provider == 's3') == has(self.s3)",message="s3 must be set for the provider s3, and only then"
// +kubebuilder:validation:XValidation:rule="!has(self.longhorn) || self.format == 'longhorn'",message="longhorn may be set for the format longhorn only"
// +kubebuilder:validation:XValidation:rule="!(has(self.default) && self.default && self.format == 'longhorn')",message="a store of the format longhorn can't be the default: Holdfast makes no backups there"
// +kubebuilder:validation:XValidation:rule="!(has(self.recoveryKeys) && self.recoveryKeys.size() > 0 && self.format == 'longhorn')",message="recoveryKeys are for the format holdfast only: Holdfast keeps no repositories in a store of the format longhorn"
// +kubebuilder:validation:XValidation:rule="self.format == oldSelf.format",message="a location keeps its format: make another one"
type StorageLocationSpec struct {
	// Kind of the store: filesystem or s3.
	Provider StorageProvider `json:"provider"`
	// How backups lie in the store: holdfast, or longhorn for one that Longhorn writes,
	// whose backups are listed beside Holdfast's own. It does not change.
	// +optional
	// +kubebuilder:default=holdfast
	Format StorageFormat `json:"format,omitempty"`
	// For the format longhorn.
	// +optional
	Longhorn *LonghornLocation `json:"longhorn,omitempty"`
	// Whether backups that name no location are stored here. At most one location
	// should say so; of several, the first by name is taken.
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
	// Clusters whose backups in this store are listed in the namespaces of the same
	// names, and so belong to whoever has rights there. Those of any other cluster are
	// listed in the system namespace. This cluster need not be named, except to give
	// a namespace that was made anew what its predecessor had stored.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	TrustedClusters []TrustedCluster `json:"trustedClusters,omitempty"`
	// Public keys of age, as age-keygen prints them. The key of each repository is written into
	// the store, encrypted for all of them. So whoever has one of the private keys, which must
	// be in no cluster, gets the data of all volumes back when this cluster is lost.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.all(key, !key.upperAscii().startsWith('AGE-SECRET-KEY-'))",message="this is a private key, which must not be in the cluster: make another pair with age-keygen, and name its public key, which begins with age1"
	// +kubebuilder:validation:XValidation:rule="self.all(key, key.upperAscii().startsWith('AGE-SECRET-KEY-') || key.matches('^age1[02-9ac-hj-np-z]{58}$'))",message="each must be a public key of age, as age-keygen prints it: 62 characters, which begin with age1"
	RecoveryKeys []string `json:"recoveryKeys,omitempty"`
	// How often this store is looked at for what others have stored there, instead of
	// --backupstore-poll-interval of the API server. 0s is never: what this cluster stores,
	// and what a syncrequest asks for, is seen all the same.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) == duration('0s') || duration(self) >= duration('1s')",message="it must be 0s, or 1s at least"
	PollInterval *metav1.Duration `json:"pollInterval,omitempty"`
	// Who has asked last for all of the store to be listed, and when. Create a syncrequest to
	// ask.
	// +optional
	SyncRequest *Ask `json:"syncRequest,omitempty"`
}

// AllowedNamespaces are those that Names has or Selector matches.
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

// LonghornLocation says how far a store that Longhorn writes is believed, and what may be
// done to it.
type LonghornLocation struct {
	// Whether volumes are listed in the namespaces that they name, and so belong to whoever
	// has rights there. Nothing in such a store is signed: whoever may write to it can have
	// anything listed in any namespace but the system namespace. By default all are listed
	// in the system namespace.
	// +optional
	TrustNamespaces bool `json:"trustNamespaces,omitempty"`
	// Whether volumes and their backups may be deleted from the store. By default nothing
	// in it is changed.
	// +optional
	AllowDeletion bool `json:"allowDeletion,omitempty"`
}

// IsLonghorn reports whether the store is one that Longhorn writes.
func (s *StorageLocationSpec) IsLonghorn() bool { return s.Format == StorageFormatLonghorn }

const (
	// AnnotationSync of a StorageLocation has all of the store listed when it changes, for
	// those who write manifests only. status.catalogue.syncRequest has it when that is done.
	AnnotationSync = "holdfast.io/sync-request"
	// AnnotationGiveUpStore of a StorageLocation is the id of a store that is given up: the
	// store that is found at the location takes its place. It has no effect on any other id.
	AnnotationGiveUpStore = "holdfast.io/give-up-store"
	// AnnotationTakeOver of a StorageLocation is an instant in RFC 3339: if ConditionClonedCluster
	// was True by then, this cluster goes on with the store, whatever another one claims. It is
	// not for the future.
	AnnotationTakeOver = "holdfast.io/take-over-until"
	// UnknownStore stands for the id of a store whose id was never read.
	UnknownStore = "unknown"
	// AnnotationAcceptLoss of a StorageLocation is an instant in RFC 3339: backups that were
	// missing from the store then leave the lists, however many they are. It is not for the
	// future.
	AnnotationAcceptLoss = "holdfast.io/accept-loss-until"
)

// AllowsDeletion reports whether the store is Longhorn's, and may be deleted from.
func (s *StorageLocationSpec) AllowsDeletion() bool {
	return s.IsLonghorn() && s.Longhorn != nil && s.Longhorn.AllowDeletion
}

// AnnotationAcceptExpiry of a StorageLocation is an instant in RFC 3339: its backups that
// have expired until then may go, however many they are.
const AnnotationAcceptExpiry = "holdfast.io/accept-expiry-until"

// TrustedCluster is a cluster whose signature is believed.
type TrustedCluster struct {
	// What to call it.
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

// FilesystemLocation is a folder that every role of Holdfast sees under the same path.
type FilesystemLocation struct {
	// Absolute path of the folder. It must exist.
	// +kubebuilder:validation:Pattern=`^/`
	// +kubebuilder:validation:MaxLength=4096
	Path string `json:"path"`
}

// ChecksumAlgorithm is the kind of checksum that goes with a write.
// +kubebuilder:validation:Enum=CRC32;None
type ChecksumAlgorithm string

const (
	// ChecksumCRC32 lets the store verify what it is sent.
	ChecksumCRC32 ChecksumAlgorithm = "CRC32"
	// ChecksumNone leaves that to the connection and the signature.
	ChecksumNone ChecksumAlgorithm = "None"
)

// S3Location is a bucket.
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
	// Checksum that goes with every write of a backup's objects: CRC32, or None for a
	// store that refuses requests with one. A bucket whose objects are locked by
	// default refuses requests without. Default CRC32.
	// +optional
	ChecksumAlgorithm ChecksumAlgorithm `json:"checksumAlgorithm,omitempty"`
	// PEM certificates of the authorities that the endpoint's certificate is
	// verified against, instead of the system's.
	// +optional
	CABundle []byte `json:"caBundle,omitempty"`
	// Name of a Secret with the keys accessKeyID and secretAccessKey, and optionally
	// sessionToken. It lies in the namespace of the credentials, which is called as
	// the system namespace with the suffix -locations. Empty means the environment's
	// own credentials.
	// +optional
	CredentialsSecret string `json:"credentialsSecret,omitempty"`
}

const (
	// ConditionAvailable is True while the store answers.
	ConditionAvailable = "Available"
	// ReasonReachable: the store answered.
	ReasonReachable = "Reachable"
	// ReasonUnreachable: the store did not answer, or not as a store does.
	ReasonUnreachable = "Unreachable"
	// ReasonOtherStore: the store is not the one that the location has had until now.
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
	// store. No backup starts there then, and nothing is deleted.
	ConditionClonedCluster = "ClonedCluster"
	// ReasonStateIsOlder: a controller that the cluster's records do not know has written to the
	// store. It is watched whether it lives.
	ReasonStateIsOlder = "StateIsOlder"
	// ReasonClaimedElsewhere: it lives. Somebody must say which cluster is to go on.
	ReasonClaimedElsewhere = "ClaimedElsewhere"
	// ReasonClaimedHere: this cluster goes on.
	ReasonClaimedHere = "ClaimedHere"
	// ConditionExpiryFrozen is True while no backup expires; its message says why, and what to do.
	ConditionExpiryFrozen = "ExpiryFrozen"
	// ReasonTooManyExpired: more have than may within an hour, and nobody has accepted that.
	ReasonTooManyExpired = "TooMany"
	// ReasonClockDiffers: the clock of the controller is not that of the store.
	ReasonClockDiffers = "ClockDiffers"
	// ReasonWithinBound: backups expire.
	ReasonWithinBound = "WithinBound"

	// ConditionSynced is True while the catalogue has what the store holds, as of the last
	// poll. Its observedGeneration is that of the location when all was listed last.
	ConditionSynced = "Synced"
	// ReasonListed: the store was listed, and what is new was read.
	ReasonListed = "Listed"
	// ReasonLoading: the store is being read for the first time.
	ReasonLoading = "Loading"
	// ReasonUnreadable: it could not be read; what is known is shown.
	ReasonUnreadable = "Unreadable"
	// ConditionBackupsMissing is True while the store lacks so many backups that none leaves the
	// lists; its message says how many.
	ConditionBackupsMissing = "BackupsMissing"
	// ReasonBackupsMissing: the store lacks backups that are known.
	ReasonBackupsMissing = "BackupsMissing"
	// ReasonBackupsFound: it lacks none, or no more than may go.
	ReasonBackupsFound = "BackupsFound"
	// ConditionMetadataReplaced is True while the store has backups whose metadata another
	// writer has replaced; its message says how many.
	ConditionMetadataReplaced = "MetadataReplaced"
	// ReasonReplacedInStore: there are such backups.
	ReasonReplacedInStore = "ReplacedInStore"
	// ReasonNoneReplaced: they have gone, or are as they were.
	ReasonNoneReplaced = "NoneReplaced"
	// ConditionBackupsLeftOut is True while the store has more backups without a trusted signature
	// than are listed; its message says how many are not.
	ConditionBackupsLeftOut = "BackupsLeftOut"
	// ReasonTooManyForeign: what is kept of such backups is bounded.
	ReasonTooManyForeign = "TooManyForeign"
	// ReasonAllListed: all backups of the store are listed by now.
	ReasonAllListed = "AllListed"
)

// CatalogueStatus is what is known of what a store holds. It is written with a change of the
// conditions, and otherwise no more often than every minute.
type CatalogueStatus struct {
	// How many backups are known. While its condition BackupsMissing is True, how many were known before.
	// +optional
	Backups int32 `json:"backups,omitempty"`
	// When the latest listing of all was begun, as of this writing.
	// +optional
	LastListTimestamp *metav1.Time `json:"lastListTimestamp,omitempty"`
	// The annotation holdfast.io/sync-request as that listing has followed it.
	// +optional
	SyncRequest string `json:"syncRequest,omitempty"`
}

// StorageLocationStatus is the state of a store.
type StorageLocationStatus struct {
	// Conditions: Available, Synced, BackupsMissing, MetadataReplaced once another writer has
	// replaced the metadata of a backup, ClonedCluster once another cluster with this one's uid
	// may have written to the store, and ExpiryFrozen once no backup was to expire, since
	// too many had at once, or the clock is not that of the store.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// What is known of what the store holds.
	// +optional
	Catalogue *CatalogueStatus `json:"catalogue,omitempty"`
	// Id of the store, which lies in the store as metadata/holdfast/store.json. A store with
	// another id, or with none, is not used. Empty if the store has none, since it takes no
	// writes, or is Longhorn's.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	StoreID string `json:"storeID,omitempty"`
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

// VolumeRepository is a Kopia repository: the data of one namespace's volumes in
// one storage location. Its name is NAMESPACE.LOCATION. Its key is in the Secret
// of the same name with the suffix .key, in the namespace that is called as the
// system namespace with the suffix -repositories; whoever loses that Secret loses
// the data.
type VolumeRepository struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Which repository.
	Spec VolumeRepositorySpec `json:"spec"`
	// Whether it can be used.
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

// VolumeRepositorySpec identifies a repository. Only when it is maintained changes.
// +kubebuilder:validation:XValidation:rule="self.volumeNamespace == oldSelf.volumeNamespace && self.backupStorageLocation == oldSelf.backupStorageLocation",message="a VolumeRepository stays the one that it is: only when it is maintained changes"
type VolumeRepositorySpec struct {
	// The namespace whose volumes the repository holds.
	VolumeNamespace string `json:"volumeNamespace"`
	// Name of the storage location.
	BackupStorageLocation string `json:"backupStorageLocation"`
	// How often it is maintained. Default: as the controller's --maintenance-frequency says.
	// +optional
	MaintenanceFrequency *metav1.Duration `json:"maintenanceFrequency,omitempty"`
	// That it is to be maintained now, and not only when it is due. It stays when that was
	// done.
	// +optional
	MaintenanceRequest *MaintenanceAsk `json:"maintenanceRequest,omitempty"`
}

// MaintenanceAsk is a request to maintain a repository now.
type MaintenanceAsk struct {
	Ask `json:",inline"`
	// That every pack is to be read, too.
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
	// ReasonKeyMissing: the repository exists and its key's Secret is gone.
	ReasonKeyMissing = "KeyMissing"
	// ReasonDamaged: the store has data of the repository, but not what opens it; or it had
	// the repository, and has nothing of it any more.
	ReasonDamaged = "Damaged"

	// ConditionKeyBackedUp is True if the repository's key is elsewhere too, so that the data
	// outlives this cluster. It is missing until the key was looked for first.
	ConditionKeyBackedUp = "KeyBackedUp"
	// ReasonKeyWrapped: it is in the store, encrypted for the location's recovery keys.
	ReasonKeyWrapped = "Wrapped"
	// ReasonKeyNotWrapped: it should be, and could not be written.
	ReasonKeyNotWrapped = "NotWrapped"
	// ReasonKeyExported: it was exported. The cluster does not know where the copy is kept.
	ReasonKeyExported = "Exported"
	// ReasonKeyNotExported: the location has no recovery keys, and nobody has exported the key
	// since it was made.
	ReasonKeyNotExported = "NotExported"

	// ConditionMaintained is True if the last maintenance succeeded, and the next one is not
	// late. It is missing until the first one has ended. Its observedGeneration is behind while
	// a maintenance that somebody has asked for has not ended.
	ConditionMaintained = "Maintained"
	// ConditionDamaged is True if the store has lost data of the repository. It is missing until
	// the first check, which a full maintenance makes.
	ConditionDamaged = "Damaged"
	// ReasonDataLost: packs are missing, or hold something else than what was written.
	ReasonDataLost = "DataLost"
	// ReasonNothingLost: the last check has found that nothing is missing.
	ReasonNothingLost = "NothingLost"

	// ReasonWaiting: it has been due for a period, or asked for, and the message says what it
	// waits for. Else the reason is the last MaintenanceResult.
	ReasonWaiting = "Waiting"
)

// Secrets lie beside the system namespace, each kind in a namespace of its own,
// since a right to read Secrets is one to all of a namespace, save for names that are
// known beforehand. So whoever needs one kind reads no other, nor what serves TLS in the
// system namespace.

// AgentsNamespace is where the node agents run and hold their Leases, so that none can
// touch those of the controllers.
func AgentsNamespace(system string) string { return system + "-agents" }

// CredentialsNamespace is where the credentials of the storage locations are.
func CredentialsNamespace(system string) string { return system + "-locations" }

// KeysNamespace is where the keys of the repositories are.
func KeysNamespace(system string) string { return system + "-repositories" }

// MaintenanceNamespace is where repositories are maintained: where the Jobs run, and hold the
// Leases of the repositories.
func MaintenanceNamespace(system string) string { return system + "-maintenance" }

// OwnNamespaces are those of Holdfast itself: what lies there says with whose rights is
// written, and where backups are.
func OwnNamespaces(system string) []string {
	return []string{system, AgentsNamespace(system), CredentialsNamespace(system), KeysNamespace(system), MaintenanceNamespace(system)}
}

// KeySecretName is the name of the Secret with the key of a repository.
func KeySecretName(repository string) string { return repository + ".key" }

// KeySecretKey is the key of the repository's password in its Secret.
const KeySecretKey = "repository-password"

const (
	// NextKeySecretKey is, in the same Secret, the password that the repository is about to
	// get, or has got a moment ago.
	NextKeySecretKey = "next-repository-password"
	// FormerKeysSecretKey are, likewise, the last passwords that it had, one a line.
	FormerKeysSecretKey = "former-repository-passwords"
)

// AnnotationKeyExported of a VolumeRepository is the fingerprint of the key that somebody has
// exported last.
const AnnotationKeyExported = "holdfast.io/key-exported"

// RepositoryTypeKopia is the only type of a repository.
const RepositoryTypeKopia = "kopia"

// RepositoryName is the name of the repository of a namespace in a location.
// Namespaces have no dots, so two pairs never share a name.
func RepositoryName(volumeNamespace, location string) string {
	return volumeNamespace + "." + location
}

// MaintenanceResult is what came of a maintenance.
// +kubebuilder:validation:Enum=Succeeded;Failed
type MaintenanceResult string

const (
	// MaintenanceSucceeded: it was done.
	MaintenanceSucceeded MaintenanceResult = "Succeeded"
	// MaintenanceFailed: it was not, or not in full.
	MaintenanceFailed MaintenanceResult = "Failed"
)

// MaintenanceRun is a maintenance that has ended.
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
	// Bytes that it removed from the store.
	// +optional
	ReclaimedBytes int64 `json:"reclaimedBytes,omitempty"`
}

// MaxDamagedPacks and MaxAffectedSnapshots are how many names a RepositoryDamage has.
const (
	MaxDamagedPacks      = 20
	MaxAffectedSnapshots = 40
)

// MaxRecentMaintenance is how many maintenances a VolumeRepository tells of.
const MaxRecentMaintenance = 25

// VolumeRepositoryStatus is the state of a repository.
type VolumeRepositoryStatus struct {
	// When it was last maintained with success.
	// +optional
	LastMaintenanceTime *metav1.Time `json:"lastMaintenanceTime,omitempty"`
	// Why the last maintenance failed. Empty if it did not.
	// +optional
	Message string `json:"message,omitempty"`
	// What it takes in its store, rounded up, as of its last full maintenance.
	// +optional
	Size *resource.Quantity `json:"size,omitempty"`
	// Files in the newest snapshots of its volumes, as of its last full maintenance.
	// +optional
	Files int64 `json:"files,omitempty"`
	// What the maintenances that recentMaintenance tells of have removed from the store,
	// rounded up.
	// +optional
	Reclaimed *resource.Quantity `json:"reclaimed,omitempty"`
	// The last maintenances, the newest first.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=25
	RecentMaintenance []MaintenanceRun `json:"recentMaintenance,omitempty"`
	// How many backups with snapshots were missing from the store, or did not list them, as of the
	// last full maintenance: too many to be believed, so that these snapshots stay.
	// +optional
	MissingBackups int32 `json:"missingBackups,omitempty"`
	// When its packs were last compared with what its index names: by a full maintenance, or
	// when somebody asked for it.
	// +optional
	LastCheckTime *metav1.Time `json:"lastCheckTime,omitempty"`
	// When every pack was last read.
	// +optional
	LastVerificationTime *metav1.Time `json:"lastVerificationTime,omitempty"`
	// The data that its store has lost, as of the last check. Missing if it has lost none.
	// +optional
	Damage *RepositoryDamage `json:"damage,omitempty"`
	// The fingerprint of its key: the first 32 hexadecimal digits of the SHA-256 of one that
	// Holdfast made. It tells keys apart, and does not tell the key.
	// +optional
	KeyFingerprint string `json:"keyFingerprint,omitempty"`
	// Conditions: Ready, KeyBackedUp, Maintained, Damaged.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// RepositoryDamage says which data of a repository its store has lost.
type RepositoryDamage struct {
	// When it was noticed first.
	Since metav1.Time `json:"since"`
	// Packs that the store lacks, or has only a part of.
	// +optional
	MissingPacks int32 `json:"missingPacks,omitempty"`
	// Packs that hold something else than what was written.
	// +optional
	DamagedPacks int32 `json:"damagedPacks,omitempty"`
	// Their names, up to 20. They are read again by each check, and what they held is stored
	// anew by the next uploads that have it.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=20
	Packs []string `json:"packs,omitempty"`
	// Indexes that the store lacks, and had at the last maintenance. What only they name is unknown,
	// snapshots included, so nothing is removed from the repository meanwhile.
	// +optional
	MissingIndexes int32 `json:"missingIndexes,omitempty"`
	// Contents of files, or of listings of folders, that can't be read.
	// +optional
	Contents int64 `json:"contents,omitempty"`
	// How many snapshots need them.
	// +optional
	AffectedSnapshots int32 `json:"affectedSnapshots,omitempty"`
	// Their ids, if they are no more than 40.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=40
	Snapshots []string `json:"snapshots,omitempty"`
	// Set if there are more, or if not all could be looked through: each snapshot that began
	// until then counts as one of them.
	// +optional
	AffectedUntil *metav1.Time `json:"affectedUntil,omitempty"`
}

// RestoreAccount is the ServiceAccount of the system namespace with whose rights the restores of
// that namespace write.
const RestoreAccount = "holdfast-restore"

// RestoreUser is the user of RestoreAccount.
func RestoreUser(system string) string {
	return "system:serviceaccount:" + system + ":" + RestoreAccount
}
