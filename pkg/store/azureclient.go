// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
)

const speaksAzure = "the protocol of Azure Blob Storage"

type azureClient struct{ *container.Client }

func openAzure(location *enginev1alpha1.AzureLocation, secret map[string][]byte, again SecretReader) (*azureBackend, error) {
	transport := newTransport()
	clients, err := newAzureOpener(location, transport).clients(secret, again)
	if err != nil {
		return nil, err
	}
	return &azureBackend{clients: clients, transport: transport}, nil
}

func newAzureOpener(location *enginev1alpha1.AzureLocation, transport http.RoundTripper) *azureOpener {
	return &azureOpener{
		url:      strings.TrimSuffix(cmp.Or(location.Endpoint, "https://"+location.StorageAccount+".blob.core.windows.net"), "/") + "/" + location.Container,
		location: location,
		options: azcore.ClientOptions{
			// A redirection would get the credentials.
			Transport: &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
			Retry:     policy.RetryOptions{MaxRetries: attempts - 1, RetryDelay: firstPause},
		},
	}
}

type azureOpener struct {
	url      string
	location *enginev1alpha1.AzureLocation
	options  azcore.ClientOptions
}

func (o *azureOpener) clients(secret map[string][]byte, again SecretReader) (*followed[*azureClient], error) {
	name := o.location.CredentialsSecret
	if name != "" {
		return follow(name, secret, again, o.fromSecret)
	}
	identity, err := azidentity.NewDefaultAzureCredential(&azidentity.DefaultAzureCredentialOptions{ClientOptions: o.options})
	if err != nil {
		// The cause may quote files.
		return nil, errors.New("the environment's own settings for Azure can't be read: correct them, or name a Secret in spec.azure.credentialsSecret")
	}
	client, err := o.withTokens(identity)
	if err != nil {
		return nil, err
	}
	return &followed[*azureClient]{current: client}, nil
}

// fromSecret accepts an account's key, a shared access signature, or an application. No error quotes
// them.
func (o *azureOpener) fromSecret(secret map[string][]byte) (*azureClient, error) {
	name := o.location.CredentialsSecret
	text := func(key string) string { return strings.TrimSpace(string(secret[key])) }
	key, signature := text(SecretAccountKey), strings.TrimPrefix(text(SecretSASToken), "?")
	tenant, id, password := text(SecretTenantID), text(SecretClientID), text(SecretClientSecret)
	application := tenant != "" || id != "" || password != ""
	switch {
	case key != "" && signature == "" && !application:
		credential, err := container.NewSharedKeyCredential(o.location.StorageAccount, key)
		if err != nil {
			return nil, fmt.Errorf("the key %s of the Secret %s is not the key of a storage account: it must be in base64, as Azure shows it", SecretAccountKey, name)
		}
		return o.opened(container.NewClientWithSharedKeyCredential(o.url, credential, o.clientOptions()))
	case key == "" && signature != "" && !application:
		return o.opened(container.NewClientWithNoCredential(o.url+"?"+signature, o.clientOptions()))
	case key == "" && signature == "" && tenant != "" && id != "" && password != "":
		identity, err := azidentity.NewClientSecretCredential(tenant, id, password, &azidentity.ClientSecretCredentialOptions{ClientOptions: o.options})
		if err != nil {
			return nil, fmt.Errorf("the keys %s, %s and %s of the Secret %s are not an application's: correct them", SecretTenantID, SecretClientID, SecretClientSecret, name)
		}
		return o.withTokens(identity)
	}
	return nil, fmt.Errorf("the Secret %s has none, or several, of the credentials for Azure: it must have %s", name, SecretKeys(enginev1alpha1.StorageProviderAzure))
}

func (o *azureOpener) withTokens(identity azcore.TokenCredential) (*azureClient, error) {
	return o.opened(container.NewClient(o.url, azureTokens{identity}, o.clientOptions()))
}

func (o *azureOpener) opened(client *container.Client, err error) (*azureClient, error) {
	if err != nil {
		return nil, errors.New("the storage location's spec.azure: its endpoint, account and container are no address: correct them")
	}
	return &azureClient{client}, nil
}

func (o *azureOpener) clientOptions() *container.ClientOptions {
	options := o.options
	options.PerRetryPolicies = []policy.Policy{azureAnswers{}}
	return &container.ClientOptions{ClientOptions: options}
}

// azureTokens marks errors of tokens: the store was not asked.
type azureTokens struct{ azcore.TokenCredential }

func (t azureTokens) GetToken(ctx context.Context, options policy.TokenRequestOptions) (azcore.AccessToken, error) {
	token, err := t.TokenCredential.GetToken(ctx, options)
	if err != nil && ctx.Err() == nil {
		err = &tokenError{err}
	}
	return token, err
}

// azureAnswers refuses answers without a store's request id.
type azureAnswers struct{}

func (azureAnswers) Do(request *policy.Request) (*http.Response, error) {
	ctx, operation := request.Raw().Context(), RequestOther
	if request.Raw().URL.Query().Get("comp") == "list" {
		operation = RequestList
	}
	response, err := request.Next()
	if err == nil {
		isOurs := response.Header.Get("X-Ms-Request-Id") != ""
		switch status := response.StatusCode; {
		case !isOurs && (status/100 == http.StatusOK/100 || status == http.StatusNotFound):
			_ = response.Body.Close()
			response, err = nil, &foreignAnswer{speaks: speaksAzure, sent: contentTypeOf(response)}
		case status >= http.StatusMultipleChoices:
			requested(ctx, operation, explain(operation, "", &azcore.ResponseError{StatusCode: status, ErrorCode: response.Header.Get("X-Ms-Error-Code")}))
			return response, nil
		}
	}
	requested(ctx, operation, explain(operation, "", err))
	return response, err
}

func classifyAzure(code string, status int) (reason string, kind error) {
	switch code {
	case "ContainerNotFound", "ContainerBeingDeleted", "ContainerDisabled":
		return "the container does not exist", ErrNoBucket
	case "BlobAlreadyExists", "ConditionNotMet":
		return ErrExists.Error(), ErrExists
	case "InvalidBlockList":
		return anotherWrite, ErrUnavailable
	case "BlobImmutableDueToPolicy":
		return classifyStatus(code, http.StatusForbidden)
	}
	return classifyStatus(code, status)
}
