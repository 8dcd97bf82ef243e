// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"context"
	"encoding/json"
	"errors"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// worthListing is from how many objects of a kind in a namespace a list is read: requests stay
// below a fifth of them.
const worthListing = 5

// existing finds objects in lists, read page by page, since objects are asked for nearly in the
// server's order. Memory holds a few pages of each list; other objects are read alone.
type existing struct {
	cluster *cluster

	mu    sync.Mutex
	lists map[listKey]*listing
}

type listKey struct{ kind, namespace string }

type listing struct {
	mu    sync.Mutex
	pages []map[string]json.RawMessage
	// from and to are the first and last name of pages.
	from, to string
	read     bool
	more     string
	// refused says that the server has no usable list, so that objects are read alone.
	refused bool
}

const keptPages = 3

func (e *existing) find(ctx context.Context, k *kind, namespace, name string) (*unstructured.Unstructured, error) {
	e.mu.Lock()
	key := listKey{k.name(), namespace}
	l := e.lists[key]
	if l == nil {
		l = &listing{}
		e.lists[key] = l
	}
	e.mu.Unlock()
	raw, known, err := l.find(ctx, e.cluster, k, namespace, name)
	switch {
	case err != nil:
		return nil, err
	case !known:
		return e.cluster.get(ctx, k, namespace, name)
	case raw == nil:
		return nil, nil
	}
	live, err := parseItem(k, raw)
	return live, err
}

func (l *listing) find(ctx context.Context, c *cluster, k *kind, namespace, name string) (raw json.RawMessage, known bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.refused && (!l.read || l.more != "" && name > l.to) {
		page, more, err := c.list(ctx, k, namespace, "", l.more)
		switch {
		case apierrors.IsForbidden(err), apierrors.IsMethodNotSupported(err), apierrors.IsResourceExpired(err):
			l.refused = true
			continue
		case err != nil:
			return nil, false, err
		}
		if err := l.add(page, more); err != nil {
			return nil, false, err
		}
	}
	if l.refused || name < l.from {
		return nil, false, nil
	}
	for _, page := range l.pages {
		if raw := page[name]; raw != nil {
			delete(page, name)
			return raw, true, nil
		}
	}
	return nil, true, nil
}

func (l *listing) add(page []json.RawMessage, more string) error {
	names := make(map[string]json.RawMessage, len(page))
	first := ""
	for _, raw := range page {
		var head struct {
			Metadata struct {
				Name string `json:"name"`
			} `json:"metadata"`
		}
		if err := json.Unmarshal(raw, &head); err != nil {
			return err
		}
		if head.Metadata.Name < l.to {
			l.refused = true
			return nil
		}
		if first == "" {
			first = head.Metadata.Name
		}
		l.to = head.Metadata.Name
		names[l.to] = raw
	}
	l.read, l.more = true, more
	if l.pages = append(l.pages, names); len(l.pages) > keptPages {
		l.pages = l.pages[1:]
		l.from = ""
		for name := range l.pages[0] {
			if l.from == "" || name < l.from {
				l.from = name
			}
		}
	}
	return nil
}

// parseItem reads an item of a list; items of built-in kinds lack kind and version.
func parseItem(k *kind, raw []byte) (*unstructured.Unstructured, error) {
	o := &unstructured.Unstructured{}
	if err := utiljson.Unmarshal(raw, &o.Object); err != nil {
		return nil, err
	}
	if o.Object == nil {
		return nil, errors.New("a list has an item that is null")
	}
	o.SetAPIVersion(k.apiVersion())
	o.SetKind(k.kind)
	return o, nil
}
