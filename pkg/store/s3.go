// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"gocloud.dev/blob/s3blob"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
)

const defaultRegion = "us-east-1"

// idleConnections suffices for the catalogue's refresh.
const idleConnections = 128

func openS3(ctx context.Context, location *enginev1alpha1.S3Location, lock *locking, secret map[string][]byte, again SecretReader) (*blobBackend, error) {
	settings, err := awsConfig(ctx, location, secret, again)
	if err != nil {
		return nil, err
	}
	if buildable, ok := settings.HTTPClient.(*awshttp.BuildableClient); ok {
		settings.HTTPClient = noticeStalls(buildable)
	}
	cache, _ := settings.Credentials.(*aws.CredentialsCache)
	settings.Credentials = toldCredentials{settings.Credentials}
	s3Client := s3.NewFromConfig(settings, func(o *s3.Options) {
		o.UsePathStyle = location.ForcePathStyle
		// A proxy without Expect: 100-continue would delay each large object by a second.
		o.ContinueHeaderThresholdBytes = -1
		if location.Endpoint != "" {
			o.BaseEndpoint = aws.String(location.Endpoint)
		}
		o.APIOptions = append(o.APIOptions, refuseForeign, tellRequests)
		switch {
		case cache == nil:
		case location.CredentialsSecret == "":
			o.APIOptions = append(o.APIOptions, followRotation(cache, newPace(refusesSession)))
		case again != nil:
			o.APIOptions = append(o.APIOptions, followRotation(cache, refuses))
		}
		if location.ChecksumAlgorithm != enginev1alpha1.ChecksumNone {
			o.APIOptions = append(o.APIOptions, sendChecksums)
		}
		if lock != nil {
			o.APIOptions = append(o.APIOptions, lock.use)
		}
	})
	bucket, err := s3blob.OpenBucket(ctx, s3Client, location.Bucket, &s3blob.Options{
		RequestChecksumCalculation: settings.RequestChecksumCalculation,
	})
	if err != nil {
		return nil, fmt.Errorf("the storage location's spec.s3: %w", err)
	}
	backend := &blobBackend{bucket: bucket, s3: s3Client, name: location.Bucket, lock: lock}
	if lock != nil {
		lock.ask = func(ctx context.Context) error {
			_, err := backend.now(ctx, lock.prefix)
			return err
		}
	}
	return backend, nil
}

// The SDK would send checksums as trailers of a chunked body, which other stores often refuse. See
// sendChecksums.
const (
	requestChecksums  = aws.RequestChecksumCalculationWhenRequired
	responseChecksums = aws.ResponseChecksumValidationWhenRequired
)

func awsConfig(ctx context.Context, location *enginev1alpha1.S3Location, secret map[string][]byte, again SecretReader) (aws.Config, error) {
	region := location.Region
	if region == "" {
		region = defaultRegion
	}
	only, withSystem, err := authorities(location.CABundle)
	if err != nil {
		return aws.Config{}, err
	}
	if location.CredentialsSecret == "" {
		settings, err := ownIdentity(ctx, location, region, withSystem)
		if err != nil {
			return aws.Config{}, err
		}
		if only != nil {
			settings.HTTPClient = httpClient(only)
		} else if buildable, ok := settings.HTTPClient.(*awshttp.BuildableClient); ok {
			settings.HTTPClient = buildable.WithTimeout(0) // objects may be large
		}
		return settings, nil
	}
	static, err := staticCredentials(location.CredentialsSecret, secret)
	if err == nil && again != nil {
		static, err = rotating(location.CredentialsSecret, secret, again)
	}
	if err != nil {
		return aws.Config{}, err
	}
	// Ignores the environment, so that settings don't leak between locations.
	return aws.Config{
		Region:                     region,
		Credentials:                static,
		HTTPClient:                 httpClient(only),
		RequestChecksumCalculation: requestChecksums,
		ResponseChecksumValidation: responseChecksums,
	}, nil
}

func staticCredentials(name string, secret map[string][]byte) (aws.CredentialsProvider, error) {
	for _, key := range []string{SecretAccessKeyID, SecretSecretAccessKey} {
		if len(secret[key]) == 0 {
			return nil, fmt.Errorf("the Secret %s lacks the key %s: add it", name, key)
		}
	}
	return credentials.NewStaticCredentialsProvider(
		string(secret[SecretAccessKeyID]), string(secret[SecretSecretAccessKey]), string(secret[SecretSessionToken])), nil
}

// httpClient always verifies certificates, by the system's authorities by default.
func httpClient(authorities *x509.CertPool) *awshttp.BuildableClient {
	return awshttp.NewBuildableClient().WithTransportOptions(func(transport *http.Transport) {
		transport.MaxIdleConnsPerHost = idleConnections
		transport.MaxIdleConns = max(transport.MaxIdleConns, idleConnections)
		if authorities != nil {
			transport.TLSClientConfig = &tls.Config{RootCAs: authorities, MinVersion: tls.VersionTLS12}
		}
	})
}

// authorities returns a bundle's authorities alone, for the store's certificate, and with the system's;
// nil without a bundle.
func authorities(bundle []byte) (only, withSystem *x509.CertPool, err error) {
	if len(bundle) == 0 {
		return nil, nil, nil
	}
	only = x509.NewCertPool()
	if !only.AppendCertsFromPEM(bundle) {
		return nil, nil, errors.New("the storage location's spec.s3.caBundle has no certificate in PEM form")
	}
	if withSystem, err = x509.SystemCertPool(); err != nil {
		return only, only, nil // the machine has none
	}
	withSystem.AppendCertsFromPEM(bundle)
	return only, withSystem, nil
}
