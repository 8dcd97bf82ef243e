// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	holdfastclientset "github.com/holdfast-io/holdfast/pkg/generated/holdfast/clientset/versioned"
	holdfastfactory "github.com/holdfast-io/holdfast/pkg/generated/holdfast/informers/externalversions"
)

// informersVariable makes the test binary run informers instead of tests, with
// the kubeconfig that it names. client-go takes the settings under test from the
// environment, once in a process.
const informersVariable = "HOLDFAST_TEST_INFORMERS_KUBECONFIG"

// contents are the objects of a client: the resourceVersion of each, by resource
// and name.
type contents map[string]map[string]string

// informers is a process that runs unmodified informers of client-go.
type informers struct {
	name    string
	command *exec.Cmd
	input   io.WriteCloser
	output  *bufio.Reader
	stderr  bytes.Buffer
}

// startInformers starts a process with typed, dynamic and metadata informers of
// all that can be watched. A list that differs from what the watch showed makes it panic.
func startInformers(t *testing.T, watchList bool) *informers {
	t.Helper()
	i := &informers{name: fmt.Sprintf("informers with WatchListClient=%t", watchList)}
	i.command = exec.Command(os.Args[0])
	i.command.Env = append(os.Environ(),
		informersVariable+"="+lab.Kubeconfig(),
		"KUBE_WATCHLIST_INCONSISTENCY_DETECTOR=true",
		fmt.Sprintf("KUBE_FEATURE_WatchListClient=%t", watchList))
	i.command.Stderr = &i.stderr
	var errs [2]error
	i.input, errs[0] = i.command.StdinPipe()
	output, err := i.command.StdoutPipe()
	errs[1] = err
	i.output = bufio.NewReader(output)
	for _, err := range append(errs[:], i.command.Start()) {
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		_ = i.input.Close() // that ends it
		if err := i.command.Wait(); err != nil {
			t.Errorf("the %s ended: %v\n%s", i.name, err, i.stderr.String())
		}
	})
	return i
}

// contents asks what the informers hold, by their kind.
func (i *informers) contents(t *testing.T) map[string]contents {
	t.Helper()
	_, err := io.WriteString(i.input, "\n")
	var line []byte
	if err == nil {
		line, err = i.output.ReadBytes('\n')
	}
	var held map[string]contents
	if err == nil {
		err = json.Unmarshal(line, &held)
	}
	if err != nil {
		_ = i.command.Wait()
		t.Fatalf("the %s are gone: %v\n%s", i.name, err, i.stderr.String())
	}
	return held
}

// runInformers answers each line of its input with the contents of the informers,
// until the input ends.
func runInformers() {
	if err := answer(context.Background(), os.Getenv(informersVariable)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func answer(ctx context.Context, kubeconfig string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := holdfastclientset.NewForConfig(config)
	if err != nil {
		return err
	}
	dynamicClient, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	metadataClient, err := metadata.NewForConfig(config)
	if err != nil {
		return err
	}
	typed := holdfastfactory.NewSharedInformerFactory(client, 0)
	untyped := dynamicinformer.NewDynamicSharedInformerFactory(dynamicClient, 0)
	partial := metadatainformer.NewSharedInformerFactory(metadataClient, 0)
	stores := map[string]map[string]cache.Store{"typed": {}, "dynamic": {}, "metadata": {}}
	for _, resource := range watched {
		gvr := v1alpha1.SchemeGroupVersion.WithResource(resource)
		generic, err := typed.ForResource(gvr)
		if err != nil {
			return err
		}
		stores["typed"][resource] = generic.Informer().GetStore()
		stores["dynamic"][resource] = untyped.ForResource(gvr).Informer().GetStore()
		stores["metadata"][resource] = partial.ForResource(gvr).Informer().GetStore()
	}
	typed.Start(ctx.Done())
	untyped.Start(ctx.Done())
	partial.Start(ctx.Done())
	typed.WaitForCacheSync(ctx.Done())
	untyped.WaitForCacheSync(ctx.Done())
	partial.WaitForCacheSync(ctx.Done())

	for input := bufio.NewScanner(os.Stdin); input.Scan(); {
		held := map[string]contents{}
		for kind, stores := range stores {
			held[kind] = contentsOf(stores)
		}
		if err := json.NewEncoder(os.Stdout).Encode(held); err != nil {
			return err
		}
	}
	return nil
}

func contentsOf(stores map[string]cache.Store) contents {
	result := contents{}
	for resource, store := range stores {
		result[resource] = map[string]string{}
		for _, object := range store.List() {
			if accessor, err := meta.Accessor(object); err == nil {
				result[resource][cache.MetaObjectToName(accessor).String()] = accessor.GetResourceVersion()
			}
		}
	}
	return result
}

// watched are the resources that can be watched.
var watched = []string{"backups", "backupqueues", "backupvolumes"}
