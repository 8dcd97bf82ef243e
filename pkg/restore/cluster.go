// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	"github.com/holdfast-io/holdfast/pkg/waits"
)

const (
	fieldManager = "holdfast-restore"
	onlyMetadata = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
	pageSize     = 500
)

// retries bridge conflicts and busy or restarting servers; the client obeys Retry-After. A request
// that reached no server is repeated while this process leads.
var retries = wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 0.2, Steps: 6, Cap: 5 * time.Second}

type cluster struct {
	client rest.Interface
	warned func(about subject, warnings []string)
	// awaits waits a moment if a webhook did not answer, and reports whether to try again.
	// Optional.
	awaits func(ctx context.Context, err error) bool
}

type kind struct {
	group, version, resource, kind string
	namespaced                     bool
	// status says that the kind has a status subresource, promised that it will be served when the
	// plan is done.
	status, promised bool
}

func (k *kind) name() string {
	if k.group == "" {
		return k.resource
	}
	return k.resource + "." + k.group
}

func (k *kind) apiVersion() string {
	if k.group == "" {
		return k.version
	}
	return k.group + "/" + k.version
}

// path returns an object's path; without name, a namespace's objects; without namespace, all.
func (k *kind) path(namespace, name, subresource string) string {
	path := "/apis/" + k.group + "/" + k.version
	if k.group == "" {
		path = "/api/" + k.version
	}
	if k.namespaced && namespace != "" {
		path += "/namespaces/" + namespace
	}
	path += "/" + k.resource
	for _, part := range []string{name, subresource} {
		if part != "" {
			path += "/" + part
		}
	}
	return path
}

func (c *cluster) create(ctx context.Context, k *kind, o *unstructured.Unstructured, strict bool) (*metav1.PartialObjectMetadata, error) {
	body, err := o.MarshalJSON()
	if err != nil {
		return nil, err
	}
	validation := metav1.FieldValidationWarn
	if strict {
		validation = metav1.FieldValidationStrict
	}
	created := &metav1.PartialObjectMetadata{}
	err = c.write(ctx, subject{k.name(), o.GetNamespace(), o.GetName()}, func() *rest.Request {
		return c.client.Post().AbsPath(k.path(o.GetNamespace(), "", "")).Param("fieldManager", fieldManager).Param("fieldValidation", validation).
			SetHeader("Content-Type", "application/json").SetHeader("Accept", onlyMetadata).Body(body)
	}, func(raw []byte) error { return json.Unmarshal(raw, created) })
	return created, err
}

// tryCreate checks an object by a dry run on the server, where one of its name may exist.
func (c *cluster) tryCreate(ctx context.Context, k *kind, o *unstructured.Unstructured) error {
	body, err := o.MarshalJSON()
	if err != nil {
		return err
	}
	return c.do(ctx, func() *rest.Request {
		return c.client.Post().AbsPath(k.path(o.GetNamespace(), "", "")).Param("dryRun", metav1.DryRunAll).Param("fieldManager", fieldManager).
			SetHeader("Content-Type", "application/json").Body(body)
	}, nil)
}

func (c *cluster) patch(ctx context.Context, k *kind, namespace, name, subresource string, patch []byte, dryRun bool) (*unstructured.Unstructured, error) {
	var patched *unstructured.Unstructured
	request := func() *rest.Request {
		return c.client.Patch(types.MergePatchType).AbsPath(k.path(namespace, name, subresource)).Param("fieldManager", fieldManager).Body(patch)
	}
	read := func(raw []byte) (err error) {
		patched, err = parse(raw)
		return err
	}
	if dryRun {
		err := c.do(ctx, func() *rest.Request { return request().Param("dryRun", metav1.DryRunAll) }, read)
		return patched, err
	}
	err := c.write(ctx, subject{k.name(), namespace, name}, func() *rest.Request { return request().Param("fieldValidation", metav1.FieldValidationWarn) }, read)
	return patched, err
}

func (c *cluster) delete(ctx context.Context, k *kind, live *unstructured.Unstructured) error {
	uid, version := live.GetUID(), live.GetResourceVersion()
	body, err := json.Marshal(metav1.DeleteOptions{
		TypeMeta:          metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"},
		Preconditions:     &metav1.Preconditions{UID: &uid, ResourceVersion: &version},
		PropagationPolicy: new(metav1.DeletePropagationForeground),
	})
	if err != nil {
		return err
	}
	return c.do(ctx, func() *rest.Request {
		return c.client.Delete().AbsPath(k.path(live.GetNamespace(), live.GetName(), "")).SetHeader("Content-Type", "application/json").Body(body)
	}, nil)
}

// get returns nil if there is no such object.
func (c *cluster) get(ctx context.Context, k *kind, namespace, name string) (live *unstructured.Unstructured, err error) {
	err = c.do(ctx, func() *rest.Request { return c.client.Get().AbsPath(k.path(namespace, name, "")) }, func(raw []byte) (err error) {
		live, err = parse(raw)
		return err
	})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return live, err
}

func (c *cluster) labelled(ctx context.Context, k *kind, namespace, selector string) ([]json.RawMessage, error) {
	page, _, err := c.page(ctx, k, namespace, map[string]string{"labelSelector": selector})
	return page, err
}

// list returns a page of objects as JSON, and the continue token or "".
func (c *cluster) list(ctx context.Context, k *kind, namespace, fieldSelector, next string) (page []json.RawMessage, more string, err error) {
	return c.page(ctx, k, namespace, map[string]string{"fieldSelector": fieldSelector, "continue": next})
}

func (c *cluster) each(ctx context.Context, k *kind, namespace string, pass func([]byte) error) error {
	for next := ""; ; {
		page, more, err := c.list(ctx, k, namespace, "", next)
		if err != nil {
			return err
		}
		for _, raw := range page {
			if err := pass(raw); err != nil {
				return err
			}
		}
		if next = more; next == "" {
			return nil
		}
	}
}

func (c *cluster) page(ctx context.Context, k *kind, namespace string, params map[string]string) (page []json.RawMessage, more string, err error) {
	var list struct {
		Metadata metav1.ListMeta   `json:"metadata"`
		Items    []json.RawMessage `json:"items"`
	}
	err = c.do(ctx, func() *rest.Request {
		request := c.client.Get().AbsPath(k.path(namespace, "", "")).Param("limit", strconv.Itoa(pageSize))
		for name, value := range params {
			if value != "" {
				request.Param(name, value)
			}
		}
		return request
	}, func(raw []byte) error { return json.Unmarshal(raw, &list) })
	return list.Items, list.Metadata.Continue, err
}

func (c *cluster) write(ctx context.Context, about subject, request func() *rest.Request, read func([]byte) error) error {
	warnings, err := c.request(ctx, request, read)
	if len(warnings) > 0 && c.warned != nil {
		c.warned(about, warnings)
	}
	return err
}

func (c *cluster) do(ctx context.Context, request func() *rest.Request, read func([]byte) error) error {
	_, err := c.request(ctx, request, read)
	return err
}

// request repeats a request after temporary errors, and returns a successful answer's warnings.
func (c *cluster) request(ctx context.Context, request func() *rest.Request, read func([]byte) error) (warnings []string, err error) {
	backoff := retries
	var waiting *waits.Wait
	defer func() { waiting.End() }()
	for {
		result := request().Do(ctx)
		err := result.Error()
		if err == nil {
			for _, warning := range result.Warnings() {
				warnings = append(warnings, warning.Text)
			}
			if read == nil {
				return warnings, nil
			}
			raw, err := result.Raw()
			if err != nil {
				return warnings, err
			}
			return warnings, read(raw)
		}
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case unreached(err):
			backoff.Steps = max(backoff.Steps, 2)
		case c.awaits != nil && c.awaits(ctx, err):
			continue
		case !passing(err) || backoff.Steps <= 1:
			return nil, err
		}
		if waiting == nil {
			waiting = waits.ForAnyone(ctx, "the API server, whose requests are tried again")
		}
		if err := sleep(ctx, max(backoff.Step(), retryAfter(err))); err != nil {
			return nil, err
		}
	}
}

func unreached(err error) bool {
	var answer apierrors.APIStatus
	return !errors.As(err, &answer)
}

// passing reports whether a later answer may differ.
func passing(err error) bool {
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) {
		return false
	}
	switch answer.Status().Code {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err)
}

func retryAfter(err error) time.Duration {
	seconds, _ := apierrors.SuggestsClientDelay(err)
	return min(time.Duration(seconds)*time.Second, 30*time.Second)
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func parse(raw []byte) (*unstructured.Unstructured, error) {
	o := &unstructured.Unstructured{}
	return o, o.UnmarshalJSON(raw)
}
