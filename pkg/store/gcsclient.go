// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"
	gcs "google.golang.org/api/storage/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
)

const (
	// attempts bounds a request's repetitions, as in the SDK of S3.
	attempts      = 3
	firstPause    = 200 * time.Millisecond
	tokenTimeout  = 30 * time.Second
	mostOfAnError = 64 << 10
)

type gcsIdentity struct{ oauth2.TokenSource }

func gcsIdentityOf(location *enginev1alpha1.GCSLocation, secret map[string][]byte, again SecretReader, base http.RoundTripper) (*followed[*gcsIdentity], error) {
	// Tokens outlive the first operation.
	ctx := context.WithValue(context.Background(), oauth2.HTTPClient, &http.Client{Transport: base, Timeout: tokenTimeout})
	name := location.CredentialsSecret
	if name == "" {
		return &followed[*gcsIdentity]{current: &gcsIdentity{&environmentTokens{ctx: ctx}}}, nil
	}
	return follow(name, secret, again, func(secret map[string][]byte) (*gcsIdentity, error) {
		key := secret[SecretServiceAccountKey]
		if len(key) == 0 {
			return nil, fmt.Errorf("the Secret %s lacks the key %s: add it", name, SecretServiceAccountKey)
		}
		// Other kinds of credentials can name programs and addresses to use.
		account, err := google.CredentialsFromJSONWithType(ctx, key, google.ServiceAccount, gcs.DevstorageReadWriteScope)
		if err != nil || !hasPrivateKey(key) {
			// The cause may quote the key.
			return nil, fmt.Errorf("the key %s of the Secret %s is not the JSON of a service account's key: create one in Google Cloud, and store its file unchanged", SecretServiceAccountKey, name)
		}
		return &gcsIdentity{account.TokenSource}, nil
	})
}

func hasPrivateKey(account []byte) bool {
	var of struct {
		PrivateKey string `json:"private_key"`
	}
	if json.Unmarshal(account, &of) != nil {
		return false
	}
	block, _ := pem.Decode([]byte(of.PrivateKey))
	return block != nil
}

// environmentTokens finds the environment's account when a token is needed, perhaps by requests, or in
// a later file.
type environmentTokens struct {
	ctx    context.Context
	mu     sync.Mutex
	source oauth2.TokenSource
}

func (e *environmentTokens) Token() (*oauth2.Token, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.source == nil {
		found, err := google.FindDefaultCredentials(e.ctx, gcs.DevstorageReadWriteScope)
		if err != nil {
			return nil, err
		}
		e.source = found.TokenSource
	}
	return e.source.Token()
}

// tokenError: no request was sent.
type tokenError struct{ error }

func (e *tokenError) Unwrap() error { return e.error }

// NonRetriable stops the retries of Azure's SDK: its credentials have retried.
func (e *tokenError) NonRetriable() {}

const noToken = "there are no usable credentials for the store: give the pods an identity, or name a Secret in credentialsSecret"

func classifyToken(err *tokenError) (reason string, kind error) {
	var answer *http.Response
	if refused, ok := errors.AsType[*oauth2.RetrieveError](err); ok {
		answer = refused.Response
	}
	if refused, ok := errors.AsType[*azidentity.AuthenticationFailedError](err); ok {
		if answer = refused.RawResponse; answer == nil {
			return "the service of the credentials can't be reached", ErrUnavailable
		}
	}
	if answer != nil {
		if isBusy(answer.StatusCode) {
			return "the service of the credentials can't answer now", ErrUnavailable
		}
		return "the credentials are refused", ErrDenied
	}
	if reason, kind := classifyTransport(err.error); reason != "" {
		return "no token can be had for the credentials: " + reason, kind
	}
	return noToken, ErrDenied
}

type answerError struct {
	status int
	code   string
}

func (e *answerError) Error() string { return fmt.Sprintf("status %d %s", e.status, e.code) }

// Codes of an answerError whose status misleads.
const (
	codeNoBucket  = "noBucket"
	codeNoSession = "noSession"
)

func classifyGCS(answer *answerError) (reason string, kind error) {
	switch {
	case answer.code == codeNoBucket:
		return noBucket, ErrNoBucket
	case answer.code == codeNoSession:
		return "the store has ended the upload", ErrUnavailable
	case answer.code == "rateLimitExceeded" || answer.code == "userRateLimitExceeded":
		return classifyStatus(answer.code, http.StatusTooManyRequests)
	case answer.status == http.StatusConflict:
		return anotherWrite, ErrUnavailable
	}
	return classifyStatus(answer.code, answer.status)
}

func isBusy(status int) bool {
	return status == http.StatusTooManyRequests || status >= http.StatusInternalServerError || status == http.StatusRequestTimeout
}

// gcsTransport authorizes requests, repeats them if the store can't answer, and makes errors of bad or
// foreign answers. So no redirection gets the token.
type gcsTransport struct {
	base     *http.Transport
	identity *followed[*gcsIdentity]
}

func (t *gcsTransport) CloseIdleConnections() { t.base.CloseIdleConnections() }

// RoundTrip implements http.RoundTripper.
func (t *gcsTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	ctx, operation := request.Context(), RequestOther
	if request.Method == http.MethodGet && strings.HasSuffix(request.URL.Path, "/o") {
		operation = RequestList
	}
	identity := t.identity.get(ctx, false)
	pause, rotated := firstPause, false
	for attempt := 1; ; attempt++ {
		response, err := t.send(request, identity)
		explained := explain(operation, "", err)
		requested(ctx, operation, explained)
		again := attempt < attempts && mayPass(explained)
		if !rotated && errors.Is(explained, ErrDenied) {
			if fresh := t.identity.get(ctx, true); fresh != identity {
				identity, rotated, again = fresh, true, true
			}
		}
		if !again || request.Body != nil && request.GetBody == nil {
			return response, err
		}
		select {
		case <-time.After(pause):
			pause *= 2
		case <-ctx.Done():
			return response, err
		}
		request = request.Clone(ctx)
		if request.GetBody != nil {
			if request.Body, err = request.GetBody(); err != nil {
				return nil, err
			}
		}
	}
}

func mayPass(err error) bool {
	_, isForeign := errors.AsType[*foreignAnswer](err)
	return errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrNoBucket) && !isForeign
}

// send closes the request's body.
func (t *gcsTransport) send(request *http.Request, identity *gcsIdentity) (*http.Response, error) {
	token, err := identity.Token()
	if err != nil {
		if request.Body != nil {
			_ = request.Body.Close()
		}
		return nil, &tokenError{err}
	}
	request = request.Clone(request.Context())
	token.SetAuthHeader(request)
	isMedia := request.URL.Query().Get("alt") == "media"
	if isMedia {
		// Else objects stored compressed would be decompressed.
		request.Header.Set("Accept-Encoding", "gzip")
	}
	response, err := t.base.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode/100 != http.StatusOK/100 {
		defer response.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(response.Body, mostOfAnError))
		return nil, &answerError{status: response.StatusCode, code: gcsCode(request, response.StatusCode, text)}
	}
	kind := contentTypeOf(response)
	good := kind == "application/json"
	switch {
	case isMedia:
		good = response.Header.Get("X-Goog-Generation") != ""
	case request.Method == http.MethodDelete:
		good = kind != pageType
	case strings.HasPrefix(request.URL.Path, "/upload/"):
		good = good || response.Header.Get("Location") != "" || response.Header.Get("X-Http-Status-Code-Override") == "308"
	}
	if !good {
		_ = response.Body.Close()
		return nil, &foreignAnswer{speaks: speaksGCS, sent: kind}
	}
	return response, nil
}

// gcsCode returns an error's code. Downloads have text, others JSON.
func gcsCode(request *http.Request, status int, text []byte) string {
	ofUpload := strings.HasPrefix(request.URL.Path, "/upload/")
	switch {
	case ofUpload && request.URL.Query().Has("upload_id") && (status == http.StatusNotFound || status == http.StatusGone):
		return codeNoSession
	case status == http.StatusNotFound && (ofUpload || strings.HasSuffix(request.URL.Path, "/o")):
		return codeNoBucket
	case status == http.StatusNotFound && strings.Contains(string(text), "bucket does not exist") && !strings.Contains(string(text), "No such object"):
		return codeNoBucket
	}
	var said struct {
		Error struct {
			Errors []struct {
				Reason string `json:"reason"`
			} `json:"errors"`
		} `json:"error"`
	}
	if json.Unmarshal(text, &said) == nil && len(said.Error.Errors) > 0 {
		return said.Error.Errors[0].Reason
	}
	return ""
}

func contentTypeOf(response *http.Response) string {
	if kind, _, err := mime.ParseMediaType(response.Header.Get("Content-Type")); err == nil && len(kind) < 64 {
		return kind
	}
	return "something of no type"
}
