// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"path"
	"strings"
	"sync"

	"github.com/google/uuid"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/blob/s3"
	"k8s.io/apimachinery/pkg/util/validation"

	engine "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// Location is a storage location and what is needed to get into it.
type Location struct {
	// Spec of the StorageLocation.
	Spec engine.StorageLocationSpec
	// Secret is the data of the Secret that the spec names: accessKeyID,
	// secretAccessKey and optionally sessionToken. Unused by a filesystem.
	Secret map[string][]byte
}

const (
	// defaultRegion is the default of S3Location.Region.
	defaultRegion = "us-east-1"
	// awsEndpoint is rewritten to the region's own endpoint by the S3 client.
	awsEndpoint = "s3.amazonaws.com"
)

// Folder is the folder of a namespace's repository below the location's root,
// with a trailing slash.
func Folder(prefix, namespace string) string {
	return path.Join(prefix, "kopia", namespace) + "/"
}

// folderOf is the folder of a namespace's repository below the location's prefix.
func folderOf(namespace string) (string, error) {
	if problems := validation.IsDNS1123Label(namespace); len(problems) > 0 {
		return "", fmt.Errorf("%q is not the name of a namespace: %s", namespace, strings.Join(problems, ", "))
	}
	return Folder("", namespace), nil
}

// connect returns the blob storage of a namespace's repository. In a folder that
// does not exist there is ErrNotInitialized.
func connect(ctx context.Context, loc Location, namespace string) (blob.Storage, error) {
	if _, err := folderOf(namespace); err != nil {
		return nil, err
	}
	folder := Folder(loc.Spec.Prefix, namespace)
	switch {
	case loc.Spec.Provider == engine.StorageProviderFilesystem && loc.Spec.Filesystem != nil:
		return connectFolder(loc.Spec.Filesystem.Path, folder)
	case loc.Spec.Provider == engine.StorageProviderS3 && loc.Spec.S3 != nil:
		return connectS3(ctx, loc.Spec.S3, loc.Secret, folder)
	default:
		return nil, fmt.Errorf("the storage location is incomplete: provider %q without its section", loc.Spec.Provider)
	}
}

func connectS3(ctx context.Context, spec *engine.S3Location, secret map[string][]byte, folder string) (blob.Storage, error) {
	opts, err := s3Options(spec, secret, folder)
	if err != nil {
		return nil, err
	}
	st, err := s3.New(ctx, opts, false)
	if err != nil {
		return nil, fmt.Errorf("reach bucket %q at %s: %w", opts.BucketName, opts.Endpoint, err)
	}
	return st, nil
}

// s3Options maps a location to Kopia's options. ForcePathStyle has no
// counterpart: the client uses the bucket as part of the path everywhere but on
// AWS and other services that it knows to want a host name.
func s3Options(spec *engine.S3Location, secret map[string][]byte, folder string) (*s3.Options, error) {
	opts := &s3.Options{
		BucketName: spec.Bucket,
		Prefix:     folder,
		Endpoint:   awsEndpoint,
		RootCA:     spec.CABundle,
		Region:     cmp.Or(spec.Region, defaultRegion),
	}
	if spec.Endpoint != "" {
		endpoint, err := url.Parse(spec.Endpoint)
		if err != nil || endpoint.Host == "" || (endpoint.Scheme != "http" && endpoint.Scheme != "https") || strings.Trim(endpoint.Path, "/") != "" {
			return nil, fmt.Errorf("the storage location's endpoint %q is not of the form https://HOST[:PORT]", spec.Endpoint)
		}
		opts.Endpoint, opts.DoNotUseTLS = endpoint.Host, endpoint.Scheme == "http"
	}
	if spec.CredentialsSecret == "" {
		return opts, nil
	}
	for _, name := range []string{store.SecretAccessKeyID, store.SecretSecretAccessKey} {
		if len(secret[name]) == 0 {
			return nil, fmt.Errorf("the Secret %s of the storage location lacks the key %s", spec.CredentialsSecret, name)
		}
	}
	opts.AccessKeyID = string(secret[store.SecretAccessKeyID])
	opts.SecretAccessKey = string(secret[store.SecretSecretAccessKey])
	opts.SessionToken = string(secret[store.SecretSessionToken])
	return opts, nil
}

// Kopia opens a repository only by a configuration file, and would write the
// store's credentials into it. Ours says only which of the storages that this
// process has connected already is meant.
const storageType = "holdfast-connected"

type storageHandle struct {
	ID string `json:"id"`
}

var connected sync.Map // from storageHandle.ID to blob.Storage

func init() {
	blob.AddSupportedStorage(storageType, storageHandle{}, func(_ context.Context, h *storageHandle, _ bool) (blob.Storage, error) {
		if st, ok := connected.Load(h.ID); ok {
			return st.(blob.Storage), nil
		}
		return nil, errors.New("this storage belongs to another process")
	})
}

// lend registers a storage for Kopia to find until release is called.
func lend(st blob.Storage) (info blob.ConnectionInfo, release func()) {
	id := uuid.NewString()
	connected.Store(id, st)
	return blob.ConnectionInfo{Type: storageType, Config: storageHandle{ID: id}}, func() { connected.Delete(id) }
}
