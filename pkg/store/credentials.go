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
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials/stscreds"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
)

const (
	identityTimeout = 30 * time.Second
	// sessionDuration is the maximum for a role assumed by a role.
	sessionDuration = time.Hour
)

// identities are this process's settings with sessions: a store is opened often, and a session costs a
// request to STS.
var identities = struct {
	sync.Mutex
	of map[string]aws.Config
}{of: map[string]aws.Config{}}

const maxIdentities = 100

// ownIdentity returns settings with the environment's credentials, or with the location's role by
// these.
func ownIdentity(ctx context.Context, location *enginev1alpha1.S3Location, region string, trusted *x509.CertPool) (aws.Config, error) {
	environment := slices.DeleteFunc(os.Environ(), func(variable string) bool { return !strings.HasPrefix(variable, "AWS_") })
	of := func(role, externalID string) string {
		return fmt.Sprintf("%q", append(environment, region, string(location.CABundle), role, externalID))
	}
	identities.Lock()
	defer identities.Unlock()
	settings, known := identities.of[of("", "")]
	if !known {
		var err error
		if settings, err = load(ctx, region, trusted); err != nil {
			return aws.Config{}, err
		}
		remember(of("", ""), settings)
	}
	if location.RoleARN == "" {
		return settings, nil
	}
	if assumed, known := identities.of[of(location.RoleARN, location.ExternalID)]; known {
		return assumed, nil
	}
	own := settings.Credentials
	settings.Credentials = toldCredentials{own}
	client := sts.NewFromConfig(settings, func(o *sts.Options) {
		if cache, ok := own.(*aws.CredentialsCache); ok {
			o.APIOptions = append(o.APIOptions, followRotation(cache, newPace(refusesSession)))
		}
	})
	settings.Credentials = aws.NewCredentialsCache(stscreds.NewAssumeRoleProvider(client, location.RoleARN, func(o *stscreds.AssumeRoleOptions) {
		o.RoleSessionName, o.Duration, o.CredentialSources = sessionName(), sessionDuration, sourcesOf(own)
		if location.ExternalID != "" {
			o.ExternalID = aws.String(location.ExternalID)
		}
	}))
	remember(of(location.RoleARN, location.ExternalID), settings)
	return settings, nil
}

func load(ctx context.Context, region string, trusted *x509.CertPool) (aws.Config, error) {
	settings, err := config.LoadDefaultConfig(ctx,
		config.WithRegion(region),
		config.WithHTTPClient(httpClient(trusted).WithTimeout(identityTimeout)),
		config.WithRequestChecksumCalculation(requestChecksums),
		config.WithResponseChecksumValidation(responseChecksums),
		config.WithWebIdentityRoleCredentialOptions(func(o *stscreds.WebIdentityRoleOptions) {
			if o.RoleSessionName == "" {
				o.RoleSessionName = sessionName()
			}
		}),
	)
	if err != nil {
		// The cause may quote files.
		return aws.Config{}, errors.New("the environment's own settings for S3 can't be read: correct them, or name a Secret in spec.s3.credentialsSecret")
	}
	return settings, nil
}

// remember keeps settings whose credentials renew themselves: a file's don't.
func remember(key string, settings aws.Config) {
	if !hasSessions(settings.Credentials) {
		return
	}
	if len(identities.of) >= maxIdentities {
		clear(identities.of)
	}
	identities.of[key] = settings
}

func hasSessions(provider aws.CredentialsProvider) bool {
	return slices.ContainsFunc(sourcesOf(provider), func(source aws.CredentialSource) bool {
		return source == aws.CredentialSourceEnvVarsSTSWebIDToken || source == aws.CredentialSourceHTTP || source == aws.CredentialSourceIMDS
	})
}

func sourcesOf(provider aws.CredentialsProvider) []aws.CredentialSource {
	if known, ok := provider.(aws.CredentialProviderSource); ok {
		return known.ProviderSources()
	}
	return nil
}

// sessionName returns the pod's name, for audit logs. It must not vary: conditions have STS's errors,
// which quote it.
func sessionName() string {
	name, _ := os.Hostname()
	name = strings.Map(func(r rune) rune {
		if r != '-' && r != '.' && notLetter(r) && (r < '0' || r > '9') {
			return -1
		}
		return r
	}, name)
	if len(name) < 2 {
		return "holdfast"
	}
	return name[:min(len(name), 64)]
}

// toldCredentials marks errors that are not the store's.
type toldCredentials struct{ aws.CredentialsProvider }

// Retrieve implements aws.CredentialsProvider.
func (c toldCredentials) Retrieve(ctx context.Context) (aws.Credentials, error) {
	given, err := c.CredentialsProvider.Retrieve(ctx)
	if err != nil {
		return given, &credentialsError{err}
	}
	return given, nil
}

type credentialsError struct{ cause error }

func (e *credentialsError) Error() string { return e.cause.Error() }

func (e *credentialsError) Unwrap() error { return e.cause }

const noCredentials = "there are no usable credentials for the store: give the pods an identity, or name a Secret in spec.s3.credentialsSecret"

func classifyCredentials(failed *credentialsError) (reason string, kind error) {
	// A role may be assumed with other credentials that failed.
	for inner, ok := errors.AsType[*credentialsError](failed.cause); ok; inner, ok = errors.AsType[*credentialsError](failed.cause) {
		failed = inner
	}
	err := failed.cause
	service := "the identity service of the pods"
	if operation, ok := errors.AsType[*smithy.OperationError](err); ok && operation.ServiceID == sts.ServiceID {
		service = "STS"
	} else if ok {
		return noCredentials, ErrDenied // the nodes' metadata service is the last resort
	}
	if answer, ok := errors.AsType[smithy.APIError](err); ok {
		code := answer.ErrorCode()
		said := ""
		if code != "" && len(code) < 64 && !strings.ContainsFunc(code, notLetter) {
			said = " (" + code + ")"
		}
		answered := status(err)
		if other, ok := errors.AsType[interface {
			error
			HTTPStatusCode() int
		}](err); ok && answered == 0 {
			answered = other.HTTPStatusCode()
		}
		switch {
		case answered >= http.StatusInternalServerError || answered == http.StatusTooManyRequests || strings.HasPrefix(code, "Throttl") || code == "IDPCommunicationError":
			return service + " can't answer now" + said, ErrUnavailable
		case strings.HasPrefix(code, "AccessDenied"):
			said += words(answer.ErrorMessage())
		}
		return service + " refuses to give credentials" + said, ErrDenied
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
		return service + " did not answer in time", ErrUnavailable
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return "the certificate of " + service + " can't be verified", ErrUnavailable
	}
	if reason, _ := classifyTransport(err); reason != "" {
		if errno, ok := errors.AsType[syscall.Errno](err); ok {
			return fmt.Sprintf("%s can't be reached: %s", service, errno), ErrUnavailable
		}
		return service + " can't be reached", ErrUnavailable
	}
	return noCredentials, ErrDenied
}

const (
	maxWords = 500
	// maxWord is longer than a usual role's ARN, and shorter than any token.
	maxWord = 160
)

// words returns STS's message, which names the caller and the missing right, unless it may quote a
// token.
func words(message string) string {
	if message == "" || len(message) > maxWords || strings.ContainsFunc(message, func(r rune) bool { return r < ' ' || r > '~' }) ||
		slices.ContainsFunc(strings.Fields(message), func(word string) bool { return len(word) > maxWord }) {
		return ""
	}
	return ": " + message
}
