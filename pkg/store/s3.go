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
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"gocloud.dev/blob/s3blob"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
)

const defaultRegion = "us-east-1"

// idleConnections suffices for the catalogue's refresh, which has the most.
const idleConnections = 128

func openS3(ctx context.Context, location *enginev1alpha1.S3Location, secret map[string][]byte, again SecretReader) (*blobBackend, error) {
	client, err := httpClient(location.CABundle)
	if err != nil {
		return nil, err
	}
	settings, err := awsConfig(ctx, location, secret, again, client)
	if err != nil {
		return nil, err
	}
	if buildable, ok := settings.HTTPClient.(*awshttp.BuildableClient); ok {
		settings.HTTPClient = noticeStalls(buildable)
	}
	s3Client := s3.NewFromConfig(settings, func(o *s3.Options) {
		o.UsePathStyle = location.ForcePathStyle
		// With a proxy that lacks Expect: 100-continue, each large object would be delayed by a
		// second.
		o.ContinueHeaderThresholdBytes = -1
		if location.Endpoint != "" {
			o.BaseEndpoint = aws.String(location.Endpoint)
		}
		o.APIOptions = append(o.APIOptions, refuseForeign, tellRequests)
		if cache, ok := settings.Credentials.(*aws.CredentialsCache); ok && again != nil {
			o.APIOptions = append(o.APIOptions, followRotation(cache))
		}
		if location.ChecksumAlgorithm != enginev1alpha1.ChecksumNone {
			o.APIOptions = append(o.APIOptions, sendChecksums)
		}
	})
	bucket, err := s3blob.OpenBucket(ctx, s3Client, location.Bucket, &s3blob.Options{
		RequestChecksumCalculation: settings.RequestChecksumCalculation,
	})
	if err != nil {
		return nil, fmt.Errorf("the storage location's spec.s3: %w", err)
	}
	return &blobBackend{bucket: bucket, s3: s3Client, name: location.Bucket}, nil
}

func awsConfig(ctx context.Context, location *enginev1alpha1.S3Location, secret map[string][]byte, again SecretReader, client aws.HTTPClient) (aws.Config, error) {
	region := location.Region
	if region == "" {
		region = defaultRegion
	}
	// The SDK would send checksums as trailers of a chunked body, which other stores often refuse.
	// See sendChecksums.
	const (
		requestChecksums  = aws.RequestChecksumCalculationWhenRequired
		responseChecksums = aws.ResponseChecksumValidationWhenRequired
	)
	if location.CredentialsSecret != "" {
		static, err := staticCredentials(location.CredentialsSecret, secret)
		if err != nil {
			return aws.Config{}, err
		}
		if again != nil {
			if static, err = rotating(location.CredentialsSecret, static, again); err != nil {
				return aws.Config{}, err
			}
		}
		// Ignores the environment, so that settings don't leak between locations.
		return aws.Config{
			Region:                     region,
			Credentials:                static,
			HTTPClient:                 client,
			RequestChecksumCalculation: requestChecksums,
			ResponseChecksumValidation: responseChecksums,
		}, nil
	}
	settings, err := config.LoadDefaultConfig(ctx,
		config.WithRegion(region),
		config.WithHTTPClient(client),
		config.WithRequestChecksumCalculation(requestChecksums),
		config.WithResponseChecksumValidation(responseChecksums),
	)
	if err != nil {
		// The cause may quote files.
		return aws.Config{}, errors.New("the environment's own settings for S3 can't be read: correct them, or name a Secret in spec.s3.credentialsSecret")
	}
	return settings, nil
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

// httpClient always verifies the endpoint's certificate.
func httpClient(caBundle []byte) (aws.HTTPClient, error) {
	client := awshttp.NewBuildableClient().WithTransportOptions(func(transport *http.Transport) {
		transport.MaxIdleConnsPerHost = idleConnections
		transport.MaxIdleConns = max(transport.MaxIdleConns, idleConnections)
	})
	if len(caBundle) == 0 {
		return client, nil
	}
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(caBundle) {
		return nil, errors.New("the storage location's spec.s3.caBundle has no certificate in PEM form")
	}
	return client.WithTransportOptions(func(transport *http.Transport) {
		transport.TLSClientConfig = &tls.Config{RootCAs: authorities, MinVersion: tls.VersionTLS12}
	}), nil
}
