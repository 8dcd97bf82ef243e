// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// FilesystemLocation is a folder that all of Holdfast's roles see at the same path.
type FilesystemLocation struct {
	// Absolute path. The folder must exist.
	// +kubebuilder:validation:Pattern=`^/`
	// +kubebuilder:validation:MaxLength=4096
	Path string `json:"path"`
}

// ChecksumAlgorithm is the checksum sent with a write.
// +kubebuilder:validation:Enum=CRC32;None
type ChecksumAlgorithm string

const (
	// ChecksumCRC32 lets the store verify received data.
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
	// URL of the service, if not AWS, as in https://s3.example.com:9000.
	// +optional
	// +kubebuilder:validation:Pattern=`^https?://[^/]+$`
	Endpoint string `json:"endpoint,omitempty"`
	// Whether the path names the bucket, instead of the host's name.
	// +optional
	ForcePathStyle bool `json:"forcePathStyle,omitempty"`
	// Checksum sent with every write of backups' objects: CRC32 (default), or None for stores that
	// refuse it. A bucket that locks objects by default needs one.
	// +optional
	ChecksumAlgorithm ChecksumAlgorithm `json:"checksumAlgorithm,omitempty"`
	// PEM certificates of the endpoint's authorities, instead of the system's.
	// +optional
	CABundle []byte `json:"caBundle,omitempty"`
	// Secret in the namespace <system namespace>-locations, with the keys accessKeyID and
	// secretAccessKey, and optionally sessionToken. Empty means the environment's credentials.
	// +optional
	CredentialsSecret string `json:"credentialsSecret,omitempty"`
	// ARN of a role that each of Holdfast's four components assumes for this location, with its own
	// identity, which the role must trust. Not with credentialsSecret.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:Pattern=`^(arn:[a-z0-9-]+:iam::[^:\s]*:role/\S+)?$`
	RoleARN string `json:"roleARN,omitempty"`
	// External id that the role's trust policy asks for. It is no secret.
	// +optional
	// +kubebuilder:validation:MaxLength=1224
	// +kubebuilder:validation:Pattern=`^([\w+=,.@:/-]{2,})?$`
	ExternalID string `json:"externalID,omitempty"`
	// A past instant: the bucket, which must have versioning, is read as of then. Backups replaced
	// or deleted since can be restored. Nothing is written. Immutable.
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
	// Secret in the namespace <system namespace>-locations, with the key serviceAccountKey: the
	// JSON of a service account's key. Empty means the environment's credentials, such as workload
	// identity.
	// +optional
	CredentialsSecret string `json:"credentialsSecret,omitempty"`
}

// AzureLocation is a container of Azure Blob Storage.
type AzureLocation struct {
	// Storage account. It must have no hierarchical namespace.
	// +kubebuilder:validation:Pattern=`^[a-z0-9]{3,24}$`
	StorageAccount string `json:"storageAccount"`
	// Name of the container.
	// +kubebuilder:validation:Pattern=`^[a-z0-9](-?[a-z0-9])*$`
	// +kubebuilder:validation:MinLength=3
	// +kubebuilder:validation:MaxLength=63
	Container string `json:"container"`
	// URL of the account's service, if not in the public cloud, as in
	// https://account.blob.core.chinacloudapi.cn. Default
	// https://<storageAccount>.blob.core.windows.net.
	// +optional
	// +kubebuilder:validation:Pattern=`^https?://[^/?#]+(/[^/?#]+)?$`
	Endpoint string `json:"endpoint,omitempty"`
	// Secret in the namespace <system namespace>-locations, with the key accountKey, or sasToken,
	// or the keys tenantID, clientID and clientSecret. Empty means the environment's credentials,
	// such as workload identity.
	// +optional
	CredentialsSecret string `json:"credentialsSecret,omitempty"`
}

// CredentialsSecret returns the name of the store's credentials Secret; empty for none.
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
