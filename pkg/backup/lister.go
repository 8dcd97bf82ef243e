// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	"github.com/holdfast-io/holdfast/pkg/waits"
)

// pageBytes is the wanted size of a page. A page four times as large is abandoned.
var pageBytes int64 = 4 << 20

const (
	// pageSize bounds a page's objects. The first page's size follows from earlier lists of the kind,
	// later ones from this list.
	pageSize = 500
	// sampled is the number of objects after which the next page is requested early, and other lists
	// learn the size.
	sampled = 50
	// unknownPage bounds an API server's memory for an unknown kind's first page: etcd limits an object
	// to 1.5 MiB. leastPage keeps one list of large objects from slowing later ones.
	unknownPage, leastPage = 100, 20
	// maxRestarts bounds a list's restarts after its continue token expired without a replacement, and
	// expired replacements in a row.
	maxRestarts = 3
	maxIdle     = 1000
)

var errLargePage = errors.New("the page is too large")

// errMalformed reports an answer that is no list. A retry would not help.
var errMalformed = errors.New("the server's answer is not a list of Kubernetes")

// errOthers reports that most of a list is unwanted; no object was visited.
var errOthers = errors.New("most of the list is of other namespaces")

// lister reads objects as the server's JSON. It decodes a page while it arrives, one object in memory
// at a time.
type lister struct {
	client rest.Interface
	retry  wait.Backoff
	sizes  *PageSizes
	// metadataOnly reports whether lists have only metadata. Nil is never.
	metadataOnly func(resource) bool
}

const acceptMetadata = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

func (l *lister) isMetadata(r resource) bool { return l.metadataOnly != nil && l.metadataOnly(r) }

func (l *lister) learn(r resource, objects, bytes int64) {
	if !l.isMetadata(r) {
		l.sizes.learn(r.GroupResource(), objects, bytes)
	}
}

type query struct {
	resource  resource
	namespace string
	selector  string
	name      string
}

type pageInfo struct {
	Continue           string `json:"continue"`
	RemainingItemCount int64  `json:"remainingItemCount"`
}

type visitor struct {
	// object gets each object's valid JSON, and must not keep it. It may come twice, as after a page
	// was read again. An error ends the list.
	object func(raw []byte) error
	// page gets after each page the number of objects to come, if the server tells.
	page func(remaining int64)
	// tooLong, if set, is asked before the first object whether to stop, unless the server sends the
	// number at the end. The remaining objects follow a page of limit. The list then fails with
	// errOthers.
	tooLong func(remaining, limit int64) bool
}

type reading struct {
	*lister
	query
	// objects and bytes count the list, or since a page was given up.
	objects, bytes int64
	whole          int64
	next           *asked
	// begins is the current page's first object, and mark an earlier page's.
	begins, mark string
	pages, idle  uint
}

type asked struct {
	token  string
	limit  int64
	cancel context.CancelFunc
	done   chan struct{}
	body   io.ReadCloser
	err    error
}

// limit returns the next page's limit. If the kind has large objects, small ones at the beginning say
// little.
func (r *reading) limit(before int64) int64 {
	if r.isMetadata(r.resource) {
		return pageSize
	}
	first := r.sizes.first(r.resource.GroupResource())
	if r.objects == 0 {
		return first
	}
	limit := max(1, min(pageSize, pageBytes*r.objects/max(r.bytes, 1)))
	if first < unknownPage {
		limit = min(limit, max(first, 2*before))
	}
	return limit
}

func (r *reading) ask(ctx context.Context, token string, before int64) *asked {
	limit := r.limit(before)
	request := r.request(r.resource, r.namespace).Param("limit", strconv.FormatInt(limit, 10))
	for name, value := range map[string]string{"continue": token, "labelSelector": r.selector} {
		if value != "" {
			request.Param(name, value)
		}
	}
	if r.isMetadata(r.resource) {
		request.SetHeader("Accept", acceptMetadata)
	}
	if r.name != "" {
		request.Param("fieldSelector", fields.OneTermEqualSelector(metav1.ObjectNameField, r.name).String())
	}
	ctx, cancel := context.WithCancel(ctx)
	page := &asked{token: token, limit: limit, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(page.done)
		page.body, page.err = request.Stream(ctx)
	}()
	return page
}

func (a *asked) drop() {
	if a == nil {
		return
	}
	a.cancel()
	<-a.done
	if a.err == nil {
		_ = a.body.Close()
	}
}

type visitError struct{ error }

// list visits all objects of a query. It replaces an expired continue token with the server's offer, or
// starts again. It retries temporary errors as long as pages get further. The error is a visitError or
// the server's.
func (l *lister) list(ctx context.Context, q query, visit visitor) error {
	token := ""
	restarts, offers := 0, 0
	retry, furthest := l.retry, 0
	r := &reading{lister: l, query: q}
	defer func() { r.next.drop() }()
	var waiting *waits.Wait
	defer func() { waiting.End() }()
	for {
		info, visited, err := r.page(ctx, token, visit)
		if err == nil {
			waiting.End()
			waiting = nil
		}
		var fromVisitor visitError
		switch {
		case err == nil:
			visit.page(info.RemainingItemCount)
			if info.Continue == "" {
				l.learn(q.resource, r.objects, r.bytes)
				return nil
			}
			if info.Continue == token {
				return fmt.Errorf("%w: a page says that it is followed by itself", errMalformed)
			}
			if err := r.further(visited); err != nil {
				return err
			}
			if token = info.Continue; visited > 0 {
				offers = 0
			}
			retry, furthest = l.retry, 0
			continue
		case errors.As(err, &fromVisitor):
			return fromVisitor
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, errLargePage):
			continue
		case errors.Is(err, errOthers):
			return err
		case token != "" && (apierrors.IsResourceExpired(err) || apierrors.IsGone(err)):
			if token = continueOf(err); token != "" {
				offers++
			} else {
				restarts++
				r.pages, r.mark = 0, ""
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
		if waiting == nil {
			waiting = waits.ForAnyone(ctx, "the API server, whose lists are tried again")
		}
		if err := sleep(ctx, &retry); err != nil {
			return err
		}
	}
}

// further fails if a page does not advance the list: too many in a row are empty, or it begins as an
// earlier one. The mark moves, so it finds cycles of any length.
func (r *reading) further(visited int) error {
	if visited == 0 {
		if r.idle++; r.idle == maxIdle {
			return fmt.Errorf("%w: of %d pages in a row none has an object, and each is followed by another", errMalformed, maxIdle)
		}
		return nil
	}
	r.idle = 0
	if r.pages++; r.pages > 1 && r.begins != "" && r.begins == r.mark {
		return fmt.Errorf("%w: two of its pages begin with %s", errMalformed, r.mark)
	}
	if bits.OnesCount(r.pages) == 1 {
		r.mark = r.begins
	}
	return nil
}

func (l *lister) get(ctx context.Context, r resource, namespace, name string) (raw []byte, _ error) {
	if err := retried(ctx, l.retry, func() error {
		result := l.request(r, namespace).Suffix(name).Do(ctx)
		raw, _ = result.Raw()
		return result.Error() // Raw's error lacks the server's message
	}); err != nil {
		return nil, err
	}
	if !json.Valid(raw) {
		return nil, errors.New("the server's answer is no JSON")
	}
	return raw, nil
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
		WarningHandler(rest.NoWarnings{})
}

// page requests the next page once its token and limit are known; some servers send the token last.
func (r *reading) page(ctx context.Context, token string, visit visitor) (info pageInfo, visited int, err error) {
	page := r.next
	if r.next = nil; page == nil || page.token != token {
		page.drop()
		page = r.ask(ctx, token, r.whole)
	}
	defer page.drop()
	<-page.done
	if page.err != nil {
		return pageInfo{}, 0, page.err
	}
	read := int64(0)
	err = decodePage(page.body, &info, func(raw []byte) error {
		if r.objects == 0 && visit.tooLong != nil && visit.tooLong(info.RemainingItemCount, page.limit) {
			return errOthers
		}
		if visited++; visited == 1 {
			r.begins = ""
			if h, err := headOf(raw); err == nil {
				r.begins = itemName(h.Metadata.Namespace, h.Metadata.Name)
			}
		}
		r.objects++
		r.bytes += int64(len(raw))
		read += int64(len(raw))
		if r.next == nil && info.Continue != "" && info.Continue != token && r.objects >= sampled {
			r.next = r.ask(ctx, info.Continue, page.limit)
		}
		if err := visit.object(raw); err != nil {
			return visitError{err}
		}
		// The retry asks for less than a quarter. A page beyond its limit is from a server without
		// limits, which would repeat it.
		if read > 4*pageBytes && int64(visited) < page.limit {
			r.objects, r.bytes = int64(visited), read
			r.learn(r.resource, r.objects, r.bytes)
			return errLargePage
		}
		return nil
	})
	if err == nil {
		r.whole = page.limit
	}
	return info, visited, err
}

// decodePage hands over a list's objects as they arrive, with fields in any order. An answer without
// items is an error: it would hide missing objects.
func decodePage(r io.Reader, info *pageInfo, object func(raw []byte) error) error {
	s := newScanner(r)
	kind, hasItems := "", false
	err := s.members(func(name string) error {
		if name == "items" {
			hasItems = true
			return decodeItems(s, object)
		}
		raw, err := s.raw()
		switch {
		case err != nil:
			return err
		case name == "kind":
			return json.Unmarshal(raw, &kind)
		case name == "metadata":
			return json.Unmarshal(raw, info)
		}
		return nil
	})
	switch {
	case err != nil:
	case !strings.HasSuffix(kind, "List"):
		err = fmt.Errorf("%w: its kind is %q", errMalformed, kind)
	case !hasItems:
		err = fmt.Errorf("%w: the %s has no items", errMalformed, kind)
	}
	if err != nil {
		return fmt.Errorf("read a list: %w", err)
	}
	return nil
}

func decodeItems(s *scanner, object func(raw []byte) error) error {
	c, err := s.token()
	switch {
	case err != nil:
		return err
	case c == 'n':
		return s.word("ull")
	case c != '[':
		return fmt.Errorf("%w: its items start with %q", errMalformed, c)
	}
	return s.each(']', func() error {
		raw, err := s.raw()
		if err != nil {
			return err
		}
		return object(raw)
	})
}

// continueOf returns the token for an expired list's rest: newer than earlier pages, but complete.
func continueOf(err error) string {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return status.Status().Continue
	}
	return ""
}

// passing reports whether a retry may succeed: the server did not answer, broke off, or says so.
func passing(err error) bool {
	if _, ok := errors.AsType[*json.SyntaxError](err); ok {
		return false
	}
	if _, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return false
	}
	if _, ok := errors.AsType[NotAllowedError](err); ok || errors.Is(err, errMalformed) {
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

func retried(ctx context.Context, backoff wait.Backoff, try func() error) error {
	var waiting *waits.Wait
	defer func() { waiting.End() }()
	for {
		err := try()
		if err == nil || ctx.Err() != nil || !passing(err) || backoff.Steps <= 1 {
			return err
		}
		if waiting == nil {
			waiting = waits.ForAnyone(ctx, "the API server, whose requests are tried again")
		}
		if sleep(ctx, &backoff) != nil {
			return err
		}
	}
}

func sleep(ctx context.Context, backoff *wait.Backoff) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(backoff.Step()):
		return nil
	}
}
