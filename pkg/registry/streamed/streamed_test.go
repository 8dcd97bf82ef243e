// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package streamed

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// fixture serves what lies in a store in memory, under the name of each object.
type fixture struct {
	t       *testing.T
	bucket  *store.Bucket
	from    store.Ranger
	openErr error
	mayKnow bool
	limit   int64
	digest  string
	handler http.Handler
	using   sync.WaitGroup
}

func (f *fixture) Use(context.Context, string) (store.Ranger, func(), error) {
	if f.openErr != nil {
		return nil, nil, f.openErr
	}
	f.using.Add(1)
	return f.from, f.using.Done, nil
}

func (f *fixture) MayKnow(context.Context) bool { return f.mayKnow }

func newFixture(t *testing.T) *fixture {
	f := &fixture{t: t, bucket: storetest.Memory(t), limit: 1 << 30}
	f.from = f.bucket
	rest := &REST{
		Streams: &Streams{Stores: f}, Object: &v1alpha1.Backup{}, Parameters: []string{"follow"},
		Find: func(_ context.Context, name string, _ url.Values) (*Answer, error) {
			return &Answer{What: "the log of " + name, Location: "default", ContentType: "text/plain", Write: Gunzipped(name, f.limit, f.digest)}, nil
		},
	}
	f.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := genericapirequest.WithUser(r.Context(), &user.DefaultInfo{Name: r.Header.Get("User")})
		handler, err := rest.Connect(ctx, strings.TrimPrefix(r.URL.Path, "/"), nil, responder{w})
		if err != nil {
			t.Error(err)
			return
		}
		handler.ServeHTTP(w, r)
	})
	return f
}

// responder answers as the API server does.
type responder struct{ w http.ResponseWriter }

func (responder) Object(int, runtime.Object) {}

func (r responder) Error(err error) {
	failed, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok {
		failed = apierrors.NewInternalError(err)
	}
	http.Error(r.w, failed.ErrStatus.Message, int(failed.ErrStatus.Code))
}

func (f *fixture) put(name, text string) []byte {
	f.t.Helper()
	var compressed bytes.Buffer
	w := gzip.NewWriter(&compressed)
	_, _ = io.WriteString(w, text)
	_ = w.Close()
	if err := f.bucket.Put(f.t.Context(), name, compressed.Bytes()); err != nil {
		f.t.Fatal(err)
	}
	return compressed.Bytes()
}

func (f *fixture) get(path string) (int, string) {
	f.t.Helper()
	recorder := httptest.NewRecorder()
	f.handler.ServeHTTP(recorder, httptest.NewRequestWithContext(f.t.Context(), http.MethodGet, path, nil))
	return recorder.Code, recorder.Body.String()
}

func TestAnswers(t *testing.T) {
	f := newFixture(t)
	f.put("b", "line\n")
	if err := f.bucket.Put(t.Context(), "plain", []byte("no gzip")); err != nil {
		t.Fatal(err)
	}
	expect := func(path string, code int, text string) {
		t.Helper()
		if gotCode, got := f.get(path); gotCode != code || !strings.Contains(got, text) {
			t.Errorf("%s: %d %q, not %d %q", path, gotCode, got, code, text)
		}
	}
	expect("/b", 200, "line\n")
	expect("/b?follow=true&timeout=10s", 200, "line\n")
	expect("/b?folow=true", 400, `"folow": there are follow`)
	expect("/b?follow=true&follow=true", 400, "2 times")
	expect("/absent", 404, `the storage location "default" does not have the log of absent`)
	expect("/plain", 500, "or is damaged")

	// Why a store is away is told to those who may know.
	for _, broken := range []func(){
		func() { f.openErr = errors.New("no such Secret") },
		func() {
			f.openErr, f.from = nil, failing{f.bucket, fmt.Errorf("%w: no such Secret", store.ErrUnavailable)}
		},
		func() { f.from = failing{f.bucket, fmt.Errorf("%w: no such Secret", store.ErrDenied)} },
	} {
		broken()
		f.mayKnow = true
		expect("/b", 503, "no such Secret")
		f.mayKnow = false
		if _, text := f.get("/b"); strings.Contains(text, "Secret") {
			t.Errorf("whoever may not know is told %q", text)
		}
		expect("/b", 503, "can't be read at the moment")
	}
}

type failing struct {
	store.Ranger
	err error
}

func (f failing) Get(context.Context, string) (io.ReadCloser, error) { return nil, f.err }

func digestOf(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// Nothing is sent of a small object that was replaced, and what is sent of a large one does not
// look whole.
func TestWhatWasReplaced(t *testing.T) {
	f := newFixture(t)
	f.mayKnow = true
	f.digest = digestOf(f.put("small", "line\n"))
	if code, text := f.get("/small"); code != http.StatusOK || text != "line\n" {
		t.Errorf("as it was stored: %d %q", code, text)
	}
	f.put("small", "lies\n")
	if code, text := f.get("/small"); code != http.StatusInternalServerError || !strings.Contains(text, "is not what was stored there") || !strings.Contains(text, "somebody has replaced it") {
		t.Errorf("replaced: %d %q", code, text)
	}

	random := rand.NewChaCha8([32]byte{})
	text := make([]byte, 3*checkedBytes) // which does not compress
	_, _ = random.Read(text)
	f.digest = digestOf(f.put("large", string(text)))
	server := httptest.NewServer(f.handler)
	defer server.Close()
	get := func() ([]byte, error) {
		response, err := server.Client().Get(server.URL + "/large")
		if err != nil {
			return nil, err
		}
		defer response.Body.Close()
		return io.ReadAll(response.Body)
	}
	if got, err := get(); err != nil || !bytes.Equal(got, text) {
		t.Errorf("as it was stored: %d of %d bytes: %v", len(got), len(text), err)
	}
	text[len(text)-1]++
	f.put("large", string(text))
	if got, err := get(); err == nil {
		t.Errorf("replaced, it seems whole with %d bytes", len(got))
	}
	f.using.Wait()
}

// An answer that is cut short, or has more than it may, does not look whole.
func TestWhatIsCutShortDoesNotLookWhole(t *testing.T) {
	f := newFixture(t)
	text := strings.Repeat("a line that is not short\n", 100_000)
	compressed := f.put("b", text)
	server := httptest.NewServer(f.handler)
	defer server.Close()
	get := func() (string, error) {
		response, err := server.Client().Get(server.URL + "/b")
		if err != nil {
			return "", err
		}
		defer response.Body.Close()
		content, err := io.ReadAll(response.Body)
		return string(content), err
	}
	if got, err := get(); got != text || err != nil {
		t.Errorf("%d of %d bytes: %v", len(got), len(text), err)
	}
	f.limit = int64(len(text))
	if got, err := get(); got != text || err != nil {
		t.Errorf("with the limit that it just keeps, %d of %d bytes: %v", len(got), len(text), err)
	}
	f.limit--
	if got, err := get(); err == nil || len(got) == len(text)+1 {
		t.Errorf("beyond the limit, it seems whole with %d bytes", len(got))
	}
	f.limit = 1 << 30
	f.digest = digestOf(compressed)
	if got, err := get(); got != text || err != nil {
		t.Errorf("as it was stored, %d of %d bytes: %v", len(got), len(text), err)
	}
	f.digest = ""
	if err := f.bucket.Put(t.Context(), "b", compressed[:len(compressed)-9]); err != nil {
		t.Fatal(err)
	}
	if got, err := get(); err == nil {
		t.Errorf("cut short, it seems whole with %d bytes", len(got))
	}
	f.using.Wait() // every answer has given the store back
}

// TestSeatsOfTenants: whoever may edit a namespace makes ServiceAccounts at will, and yet takes no more
// than one user's seats with them; and all who read of one namespace leave seats to others.
func TestSeatsOfTenants(t *testing.T) {
	for name, test := range map[string]struct {
		user, namespace func(i int) string
		want            int
	}{
		"accounts of a namespace": {func(i int) string { return fmt.Sprint("system:serviceaccount:shop:reader-", i) }, func(int) string { return "holdfast" }, perUser},
		"accounts of many":        {func(i int) string { return fmt.Sprintf("system:serviceaccount:ns-%d:reader", i) }, func(int) string { return "holdfast" }, perLocation},
		"users of a namespace":    {func(i int) string { return fmt.Sprint("user-", i) }, func(int) string { return "shop" }, perNamespace},
		"users of many":           {func(i int) string { return fmt.Sprint("user-", i) }, func(i int) string { return fmt.Sprint("ns-", i) }, perLocation},
	} {
		streams, taken := &Streams{SystemNamespace: "holdfast"}, 0
		for i := range 2 * perLocation {
			ctx := genericapirequest.WithNamespace(genericapirequest.WithUser(t.Context(), &user.DefaultInfo{Name: test.user(i)}), test.namespace(i))
			if leave, err := streams.seat(ctx, &Answer{Location: "default"}); err == nil {
				taken++
				defer leave()
			}
		}
		if taken != test.want {
			t.Errorf("%s have taken %d seats, want %d", name, taken, test.want)
		}
	}
}

// Who holds many answers gets no more of them, and others do.
func TestSeats(t *testing.T) {
	streams := &Streams{}
	as := func(name string) context.Context {
		return genericapirequest.WithUser(t.Context(), &user.DefaultInfo{Name: name})
	}
	answer := func(location string) *Answer { return &Answer{Location: location} }
	var leaves []func()
	take := func(user, location string) error {
		leave, err := streams.seat(as(user), answer(location))
		if err == nil {
			leaves = append(leaves, leave)
		}
		return err
	}
	for range perUser {
		if err := take("ann", "default"); err != nil {
			t.Fatal(err)
		}
	}
	if err := take("ann", "other"); !apierrors.IsTooManyRequests(err) {
		t.Errorf("one more of a user: %v", err)
	}
	for i := range perLocation - perUser {
		if err := take(fmt.Sprint("user-", i), "default"); err != nil {
			t.Fatal(err)
		}
	}
	if err := take("bob", "default"); !apierrors.IsTooManyRequests(err) {
		t.Errorf("one more of a location: %v", err)
	} else if seconds, ok := apierrors.SuggestsClientDelay(err); !ok || seconds != retrySeconds {
		t.Errorf("it says to come again in %d s", seconds)
	}
	if err := take("bob", "other"); err != nil {
		t.Error(err)
	}
	follow := func(user, run string) error {
		leave, err := streams.seat(as(user), &Answer{Running: &Running{UID: types.UID(run)}})
		if err == nil {
			leaves = append(leaves, leave)
		}
		return err
	}
	for i := range perLocation {
		if err := follow(fmt.Sprint("follower-", i), "a"); err != nil {
			t.Fatal(err)
		}
	}
	if err := follow("cid", "a"); !apierrors.IsTooManyRequests(err) {
		t.Errorf("one more of a run: %v", err)
	}
	if err := follow("cid", "b"); err != nil {
		t.Errorf("who follows one run keeps others from another one: %v", err)
	}
	for _, leave := range leaves {
		leave()
	}
	if len(streams.taken) > 0 {
		t.Errorf("there remain %v", streams.taken)
	}
}

// A store that does not begin to answer is one that is away.
func TestAStoreThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.from, f.mayKnow = hanging{f.bucket}, true
		began := time.Now()
		code, text := f.get("/b")
		if code != http.StatusServiceUnavailable || time.Since(began) != beginTimeout {
			t.Errorf("after %s: %d %s", time.Since(began), code, text)
		}
	})
}

type hanging struct{ store.Ranger }

func (hanging) Get(ctx context.Context, _ string) (io.ReadCloser, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// A client that takes nothing does not hold its seat.
func TestAClientThatTakesNothing(t *testing.T) {
	deadlines := &deadlineRecorder{ResponseRecorder: httptest.NewRecorder()}
	f := newFixture(t)
	f.put("b", "line\n")
	f.handler.ServeHTTP(deadlines, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/b", nil))
	if len(deadlines.set) != 2 || deadlines.set[0].IsZero() || !deadlines.set[1].IsZero() {
		t.Errorf("the deadlines of the connection were %v", deadlines.set)
	}
}

type deadlineRecorder struct {
	*httptest.ResponseRecorder
	set []time.Time
}

func (d *deadlineRecorder) SetWriteDeadline(at time.Time) error {
	d.set = append(d.set, at)
	return nil
}

func TestNotFound(t *testing.T) {
	if err := NotFound("there is none"); !apierrors.IsNotFound(err) || err.Error() != "there is none" || apierrors.ReasonForError(err) != metav1.StatusReasonNotFound {
		t.Error(err)
	}
}
