// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
