// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
)

const (
	pageSize = 500
	// maxRestarts bounds how often one list starts again because its continue
	// token expired and the server gave no other, and how often in a row it gave one
	// that has expired as well.
	maxRestarts = 3
)

// errMalformed: what the server sends is no list. It would be none the next time.
var errMalformed = errors.New("the server's answer is not a list of Kubernetes")

// lister reads objects as the server's own JSON. A page is decoded while it
// arrives, so that one object is in memory at a time, not the page.
type lister struct {
	client rest.Interface
	retry  wait.Backoff
}

// query is one list.
type query struct {
	resource  resource
	namespace string // empty: all
	selector  string // of labels; empty: all
}

// pageInfo is what a page says of its list.
type pageInfo struct {
	Continue           string `json:"continue"`
	RemainingItemCount int64  `json:"remainingItemCount"`
}

// visitor takes the objects of a list.
type visitor struct {
	// object gets each object's JSON, valid until it returns. An object may come
	// twice, when a page had to be read again. An error ends the list.
	object func(raw []byte) error
	// page is called at the end of each page with the number of objects to come,
	// as far as the server tells.
	page func(remaining int64)
}

// visitError is an error of the visitor, which ends the backup, as opposed to
// one of the server.
type visitError struct{ error }

// list visits all objects of a query. A continue token that has expired is
// replaced by the one that the server offers for the rest of the list, or else
// the list starts again. What looks passing, a broken connection among others,
// is tried again while pages get further than before. So a list ends, whatever the
// server does, as long as that does not invent objects. The error is a visitError
// or that of the server.
func (l *lister) list(ctx context.Context, q query, visit visitor) error {
	token := ""
	restarts, offers := 0, 0
	retry, furthest := l.retry, 0
	for {
		info, visited, err := l.page(ctx, q, token, visit.object)
		var fromVisitor visitError
		switch {
		case err == nil:
			visit.page(info.RemainingItemCount)
			if info.Continue == "" {
				return nil
			}
			if info.Continue == token {
				return fmt.Errorf("%w: a page says that it is followed by itself", errMalformed)
			}
			token, offers = info.Continue, 0
			retry, furthest = l.retry, 0
			continue
		case errors.As(err, &fromVisitor):
			return fromVisitor
		case ctx.Err() != nil:
			return ctx.Err()
		case token != "" && (apierrors.IsResourceExpired(err) || apierrors.IsGone(err)):
			if token = continueOf(err); token != "" {
				offers++
			} else {
				restarts++
			}
			if max(offers, restarts) > maxRestarts {
				return err
			}
			retry, furthest = l.retry, 0
			continue
		case !passing(err):
			return err
		}
		if visited > furthest {
			retry, furthest = l.retry, visited
		}
		if retry.Steps <= 1 {
			return err
		}
		if err := sleep(ctx, &retry); err != nil {
			return err
		}
	}
}

// get reads one object.
func (l *lister) get(ctx context.Context, r resource, namespace, name string) ([]byte, error) {
	retry := l.retry
	for {
		result := l.request(r, namespace).Suffix(name).Do(ctx)
		raw, _ := result.Raw()
		err := result.Error() // which, unlike that of Raw, is what the server says
		if err == nil || ctx.Err() != nil || !passing(err) || retry.Steps <= 1 {
			return raw, err
		}
		if err := sleep(ctx, &retry); err != nil {
			return nil, err
		}
	}
}

func (l *lister) request(r resource, namespace string) *rest.Request {
	path := []string{"/apis", r.Group, r.Version}
	if r.Group == "" {
		path = []string{"/api", r.Version}
	}
	if namespace != "" {
		path = append(path, "namespaces", namespace)
	}
	return l.client.Get().AbsPath(append(path, r.Resource)...).
		SetHeader("Accept", runtime.ContentTypeJSON).
		// That a version is deprecated is no concern of who reads it.
		WarningHandler(rest.NoWarnings{})
}

func (l *lister) page(ctx context.Context, q query, token string, visit func([]byte) error) (info pageInfo, visited int, err error) {
	request := l.request(q.resource, q.namespace).Param("limit", strconv.Itoa(pageSize))
	if token != "" {
		request.Param("continue", token)
	}
	if q.selector != "" {
		request.Param("labelSelector", q.selector)
	}
	body, err := request.Stream(ctx)
	if err != nil {
		return pageInfo{}, 0, err
	}
	defer body.Close()
	err = decodePage(body, &info, func(raw []byte) error {
		visited++
		if err := visit(raw); err != nil {
			return visitError{err}
		}
		return nil
	})
	return info, visited, err
}

// decodePage hands over the objects of a list as they arrive. The server may
// send the list's fields in any order.
func decodePage(r io.Reader, info *pageInfo, object func(raw []byte) error) error {
	decoder := json.NewDecoder(r)
	if err := expect(decoder, json.Delim('{')); err != nil {
		return err
	}
	var raw json.RawMessage
	for decoder.More() {
		key, err := decoder.Token()
		if err != nil {
			return fmt.Errorf("read a list: %w", err)
		}
		switch key {
		case "metadata":
			err = decoder.Decode(info)
		case "items":
			err = decodeItems(decoder, &raw, object)
		default:
			err = decoder.Decode(&raw)
		}
		if err != nil {
			return fmt.Errorf("read a list: %w", err)
		}
	}
	return expect(decoder, json.Delim('}'))
}

func decodeItems(decoder *json.Decoder, raw *json.RawMessage, object func(raw []byte) error) error {
	start, err := decoder.Token()
	if err != nil || start == nil {
		return err
	}
	if start != json.Delim('[') {
		return fmt.Errorf("%w: its items start with %v", errMalformed, start)
	}
	for decoder.More() {
		if err := decoder.Decode(raw); err != nil {
			return err
		}
		if err := object(*raw); err != nil {
			return err
		}
	}
	_, err = decoder.Token()
	return err
}

func expect(decoder *json.Decoder, want json.Delim) error {
	switch got, err := decoder.Token(); {
	case err != nil:
		return fmt.Errorf("read a list: %w", err)
	case got != want:
		return fmt.Errorf("%w: found %v instead of %v", errMalformed, got, want)
	}
	return nil
}

// continueOf is the token for the rest of an expired list. What it leads to is of
// a later state than what came before, but complete.
func continueOf(err error) string {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return status.Status().Continue
	}
	return ""
}

// passing says whether it may go better the next time: the server did not
// answer, broke off, or says so.
func passing(err error) bool {
	if _, ok := errors.AsType[*json.SyntaxError](err); ok {
		return false
	}
	if _, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return false
	}
	if errors.Is(err, errMalformed) {
		return false
	}
	switch apierrors.ReasonForError(err) {
	case metav1.StatusReasonServerTimeout, metav1.StatusReasonTimeout, metav1.StatusReasonTooManyRequests,
		metav1.StatusReasonServiceUnavailable, metav1.StatusReasonInternalError:
		return true
	case metav1.StatusReasonUnknown:
		var status apierrors.APIStatus
		return !errors.As(err, &status) || status.Status().Code >= 500
	}
	return false
}

func sleep(ctx context.Context, backoff *wait.Backoff) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(backoff.Step()):
		return nil
	}
}
