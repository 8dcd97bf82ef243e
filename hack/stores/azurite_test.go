// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package stores

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/repository"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// The account of every Azurite, as its documentation has it.
const (
	azuriteAccount = "devstoreaccount1"
	azuriteKey     = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)

// azurite is where make stores installs Azurite.
const azurite = "../../.lab/azurite/node_modules/.bin/azurite-blob"

var listens = regexp.MustCompile(`listens on (http://127\.0\.0\.1:[1-9][0-9]*)`)

// startAzurite opens a new container of Azurite with each call, below a prefix.
func startAzurite(t testing.TB) func(t testing.TB) (enginev1alpha1.StorageLocationSpec, map[string][]byte) {
	t.Helper()
	if _, err := os.Stat(azurite); err != nil {
		t.Fatalf("%v: install Azurite by make stores, which needs npm", err)
	}
	// It knows fewer versions of the protocol than the client, and answers those as its last one.
	server := exec.Command(azurite, "--blobHost", "127.0.0.1", "--blobPort", "0", "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry")
	server.Stderr = os.Stderr
	said, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	address := make(chan string, 1)
	go func() {
		for lines := bufio.NewScanner(said); lines.Scan(); {
			if match := listens.FindStringSubmatch(lines.Text()); match != nil {
				address <- match[1]
			}
		}
	}()
	var endpoint string
	select {
	case endpoint = <-address:
		endpoint += "/" + azuriteAccount
	case <-time.After(2 * time.Minute):
		t.Fatal("Azurite did not start within two minutes")
	}
	credential, err := container.NewSharedKeyCredential(azuriteAccount, azuriteKey)
	if err != nil {
		t.Fatal(err)
	}
	containers := 0
	return func(t testing.TB) (enginev1alpha1.StorageLocationSpec, map[string][]byte) {
		t.Helper()
		containers++
		name := fmt.Sprintf("backups-%d", containers)
		client, err := container.NewClientWithSharedKeyCredential(endpoint+"/"+name, credential, nil)
		if err == nil {
			_, err = client.Create(t.Context(), nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		return enginev1alpha1.StorageLocationSpec{
			Provider: enginev1alpha1.StorageProviderAzure,
			Prefix:   "one/two",
			Azure:    &enginev1alpha1.AzureLocation{StorageAccount: azuriteAccount, Container: name, Endpoint: endpoint, CredentialsSecret: "account"},
		}, map[string][]byte{store.SecretAccountKey: []byte(azuriteKey)}
	}
}

func TestAzurite(t *testing.T) {
	next := startAzurite(t)
	t.Run("suite", func(t *testing.T) {
		storetest.Run(t, func(t *testing.T) storetest.Store {
			location, account := next(t)
			return storetest.Open(t, location, account)
		})
	})
	// Kopia's storage goes over the same store.
	t.Run("repository", func(t *testing.T) {
		location, account := next(t)
		testRepository(t, repository.Location{Spec: location, Secret: account})
	})
	// The first request asks for the kind of the account.
	t.Run("requests", func(t *testing.T) {
		location, account := next(t)
		// The path is signed.
		server, taken := counted(t, strings.TrimSuffix(location.Azure.Endpoint, "/"+azuriteAccount))
		location.Azure.Endpoint = server + "/" + azuriteAccount
		testRequests(t, storetest.Open(t, location, account), taken, map[string]string{
			"check": "[GET GET]", "create": "[PUT]", "put": "[PUT]", "small stream": "[PUT]", "large stream": "[PUT PUT PUT PUT]", "list": "[GET]",
			"list after": "[GET]", "get": "[GET]", "part": "[GET]", "attributes": "[HEAD]", "delete": "[DELETE]", "remove": "[DELETE]",
		})
	})
}
