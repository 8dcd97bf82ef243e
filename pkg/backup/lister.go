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

// pageBytes is how large a page is to be. One that grows beyond four times as much is given up.
var pageBytes int64 = 4 << 20

const (
	// pageSize is how many objects a page has at most. The first one has as many as fit by what
	// earlier lists had, or unknownPage if that is not known, and those after it by what the list
	// had before.
	pageSize = 500
	// sampled is from how many objects of a page on the next one is asked for beside it, and from
	// how many of a list on others go by it.
	sampled = 50
	// unknownPage bounds what an API server may have to hold for the first page of a kind of
	// which nothing is known: an object has 1.5 MiB at most, since etcd takes no more. leastPage
	// bounds it from below, so that one list of large objects costs those of a few small ones nothing.
	unknownPage, leastPage = 100, 20
	// maxRestarts bounds how often one list starts again because its continue
	// token expired and the server gave no other, and how often in a row it gave one
	// that has expired as well.
	maxRestarts = 3
	// maxIdle is how many pages in a row may bring nothing.
	maxIdle = 1000
)

// errLargePage: a page grew too large, and is to be asked for anew with fewer objects.
var errLargePage = errors.New("the page is too large")

// errMalformed says that the server's answer is no list. It would be none the next time.
var errMalformed = errors.New("the server's answer is not a list of Kubernetes")

// errOthers: most of a list is what nobody wants, and nothing of it was visited.
var errOthers = errors.New("most of the list is of other namespaces")

// lister reads objects as the server's own JSON. A page is decoded while it
// arrives, so that one object is in memory at a time, not the page.
type lister struct {
	client rest.Interface
	retry  wait.Backoff
	// sizes may be nil.
	sizes *PageSizes
}

// query is one list.
type query struct {
	resource  resource
	namespace string // empty: all
	selector  string // of labels; empty: all
	name      string // empty: all
}

// pageInfo is what a page says of its list.
type pageInfo struct {
	Continue           string `json:"continue"`
	RemainingItemCount int64  `json:"remainingItemCount"`
}

// visitor takes the objects of a list.
type visitor struct {
	// object gets each object's JSON, valid as such, and kept until it returns. An object may come
	// twice, when a page had to be read again. An error ends the list.
	object func(raw []byte) error
	// page is called at the end of each page with the number of objects to come,
	// as far as the server tells.
	page func(remaining int64)
	// tooLong, if set, is asked before the first object whether a list is not worth reading that has
	// so many objects behind its first page, of so many. Servers that say that at a page's end only
	// are not asked about. The list ends with errOthers then.
	tooLong func(remaining, limit int64) bool
}

// reading is a list under way.
type reading struct {
	*lister
	query
	// objects and bytes are what was seen of it, or since a page was given up.
	objects, bytes int64
	// whole is how many objects the last whole page was asked for.
	whole int64
	// next is the page that is asked for while the one before it is read, or nil.
	next *asked
	// begins is what the page that is read begins with, and mark what one before it did.
	begins, mark string
	// pages are those that brought objects, and idle those in a row that brought none.
	pages, idle uint
}

// asked is a page that somebody asks for.
type asked struct {
	token  string
	limit  int64
	cancel context.CancelFunc
	done   chan struct{}
	body   io.ReadCloser
	err    error
}

// limit is how many objects the page after one of so many is to have. Of a kind that has large
// objects as well, the small ones that a list may begin with say little of those that follow.
func (r *reading) limit(before int64) int64 {
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

// ask asks for the page after one of so many objects.
func (r *reading) ask(ctx context.Context, token string, before int64) *asked {
	limit := r.limit(before)
	request := r.request(r.resource, r.namespace).Param("limit", strconv.FormatInt(limit, 10))
	for name, value := range map[string]string{"continue": token, "labelSelector": r.selector} {
		if value != "" {
			request.Param(name, value)
		}
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

// drop ends what was asked, and returns when nothing of it is left.
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

// visitError is an error of the visitor, which ends the backup, as opposed to
// one of the server.
type visitError struct{ error }

// list visits all objects of a query. A continue token that has expired is
// replaced by the one that the server offers for the rest of the list, or else
// the list starts again. What looks passing, a broken connection among others,
// is tried again while pages get further than before. So a list ends, whatever the
// server does, as long as that neither invents objects nor repeats them in ever other
// orders. The error is a visitError or that of the server.
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
				l.sizes.learn(q.resource.GroupResource(), r.objects, r.bytes)
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

// further is an error if a page that others are to follow gets a list no further: one of
// many in a row without objects, or one that begins as another one did. It looks at one of
// those before, a later one from time to time, which finds a circle of any length.
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

// get reads one object, which is valid JSON.
func (l *lister) get(ctx context.Context, r resource, namespace, name string) (raw []byte, _ error) {
	if err := retried(ctx, l.retry, func() error {
		result := l.request(r, namespace).Suffix(name).Do(ctx)
		raw, _ = result.Raw()
		return result.Error() // which, unlike that of Raw, is what the server says
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
		// That a version is deprecated is no concern of who reads it.
		WarningHandler(rest.NoWarnings{})
}

// page reads one page. The next one is asked for as soon as it is known where it begins, and how
// large it is to be: a server that sends that at the page's end, as for custom resources, is
// asked then.
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
			if h, err := headOf(raw); err == nil { // what is none is the visitor's to tell
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
		// Of fewer than a quarter as many it is asked for then. What has more objects than it was asked
		// for is of a server that does not look at limits, and would send it again.
		if read > 4*pageBytes && int64(visited) < page.limit {
			r.objects, r.bytes = int64(visited), read
			r.sizes.learn(r.resource.GroupResource(), r.objects, r.bytes)
			return errLargePage
		}
		return nil
	})
	if err == nil {
		r.whole = page.limit
	}
	return info, visited, err
}

// decodePage hands over the objects of a list as they arrive. The server may
// send the list's fields in any order. An answer that is no list, or that lacks
// its items, is an error: as a list without objects, it would hide that they are missing.
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

// retried tries again what goes wrong in passing, for as long as the backoff has steps.
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
