// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package clustercache

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

var documents = map[string]bool{"/api": true, "/apis": true}

// Resources reads which resources a cluster serves. Answers are sent and parsed only if they have changed. It is
// safe for concurrent use.
type Resources struct {
	client discovery.ServerResourcesInterfaceWithContext

	mu   sync.Mutex
	last known // the content of the answers with these tags
}

type known struct {
	tags  map[string]string
	lists []*metav1.APIResourceList
	err   error
}

// NewResources returns the Resources of the cluster of a config.
func NewResources(config *rest.Config) (*Resources, error) {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return conditional{next} })
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	return &Resources{client: discovery.ToServerResourcesInterfaceWithContext(client)}, nil
}

// ServerPreferredResourcesWithContext is as in discovery.DiscoveryClient. The result must not be modified.
func (r *Resources) ServerPreferredResourcesWithContext(ctx context.Context) ([]*metav1.APIResourceList, error) {
	r.mu.Lock()
	last := r.last
	r.mu.Unlock()
	lists, asked, err := r.ask(ctx, last.tags)
	switch {
	case len(asked.unchanged) == len(documents) && asked.sent == 0:
		return last.lists, last.err
	case len(asked.unchanged) > 0: // the lists are partial
		lists, asked, err = r.ask(ctx, nil)
	}
	if len(asked.tags) != len(documents) || err != nil && !discovery.IsGroupDiscoveryFailedError(err) {
		return lists, err
	}
	r.mu.Lock()
	r.last = known{asked.tags, lists, err}
	r.mu.Unlock()
	return lists, err
}

func (r *Resources) ask(ctx context.Context, tags map[string]string) ([]*metav1.APIResourceList, *asked, error) {
	asked := &asked{known: tags, tags: map[string]string{}, unchanged: map[string]string{}}
	lists, err := r.client.ServerPreferredResourcesWithContext(context.WithValue(ctx, askedKey{}, asked))
	return lists, asked, err
}

type asked struct {
	known map[string]string // the tags of known answers

	mu sync.Mutex
	// sent counts the sent answers, tags has their tags, unchanged the others'. Discovery may repeat requests.
	sent            int
	tags, unchanged map[string]string
}

type askedKey struct{}

// conditional requests known answers only if they have changed; otherwise discovery gets an empty document.
type conditional struct{ next http.RoundTripper }

const nothing = `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","items":[]}`

func (c conditional) RoundTrip(request *http.Request) (*http.Response, error) {
	asked, _ := request.Context().Value(askedKey{}).(*asked)
	path := request.URL.Path
	if asked == nil || !documents[path] {
		return c.next.RoundTrip(request)
	}
	tag := asked.known[path]
	if tag != "" {
		request = request.Clone(request.Context())
		request.Header.Set("If-None-Match", tag)
	}
	response, err := c.next.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	asked.mu.Lock()
	defer asked.mu.Unlock()
	switch {
	case response.StatusCode == http.StatusNotModified && tag != "":
		asked.unchanged[path] = tag
		_ = response.Body.Close()
		response.StatusCode, response.Status = http.StatusOK, "200 OK"
		response.Header = http.Header{"Content-Type": {discovery.AcceptV2}}
		response.Body, response.ContentLength = io.NopCloser(strings.NewReader(nothing)), int64(len(nothing))
	case response.StatusCode == http.StatusOK:
		asked.sent++
		if sent := response.Header.Get("ETag"); sent != "" {
			asked.tags[path] = sent
		}
	}
	return response, nil
}

func (c conditional) WrappedRoundTripper() http.RoundTripper { return c.next }
