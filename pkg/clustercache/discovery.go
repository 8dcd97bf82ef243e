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

// documents are what discovery reads of a server that has them; others are asked as ever.
var documents = map[string]bool{"/api": true, "/apis": true}

// Resources asks a cluster which resources it serves, each time anew. The answer is sent and
// read only if it has changed. It is safe for concurrent use.
type Resources struct {
	client discovery.ServerResourcesInterfaceWithContext

	mu sync.Mutex
	// last is what the answers with these tags say.
	last known
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

// ServerPreferredResourcesWithContext is that of discovery.DiscoveryClient. The result is not to
// be changed.
func (r *Resources) ServerPreferredResourcesWithContext(ctx context.Context) ([]*metav1.APIResourceList, error) {
	r.mu.Lock()
	last := r.last
	r.mu.Unlock()
	lists, asked, err := r.ask(ctx, last.tags)
	switch {
	case len(asked.unchanged) == len(documents) && asked.sent == 0:
		return last.lists, last.err
	case len(asked.unchanged) > 0: // what was read has a part only
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

// asked is what is noted of one discovery.
type asked struct {
	// known are the tags of the answers that need not be sent again.
	known map[string]string

	mu sync.Mutex
	// sent is how many answers were, and tags are theirs; unchanged are those that were not.
	// Discovery asks again when it fails to find the resources of a group.
	sent            int
	tags, unchanged map[string]string
}

type askedKey struct{}

// conditional asks for what is known only if it has changed. In place of what has not, discovery
// gets a document without any resource.
type conditional struct{ next http.RoundTripper }

const nothing = `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","items":[]}`

// RoundTrip implements http.RoundTripper.
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

// WrappedRoundTripper lets client-go find the transport below.
func (c conditional) WrappedRoundTripper() http.RoundTripper { return c.next }
