// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/runlog"
	"github.com/holdfast-io/holdfast/pkg/runlog/remote"
	"github.com/holdfast-io/holdfast/pkg/volumefiles"
)

// fakeSource answers with content, after which it fails.
type fakeSource struct {
	content string
	size    int64 // of the answer, if it is not the content's
	early   error // before it begins
	late    error // behind the content
	entered chan struct{}
	leave   chan struct{}
}

func (f *fakeSource) List(_ context.Context, request *volumefiles.Request) (*v1alpha1.VolumeFileList, error) {
	return &v1alpha1.VolumeFileList{Path: request.Path, Continue: request.Continue}, f.early
}

func (f *fakeSource) Copy(ctx context.Context, _ *volumefiles.Request, begin func(int64), to io.Writer) error {
	if f.entered != nil {
		f.entered <- struct{}{}
		select {
		case <-f.leave:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if f.early != nil {
		return f.early
	}
	begin(max(f.size, int64(len(f.content))))
	if _, err := io.WriteString(to, f.content); err != nil {
		return err
	}
	return f.late
}

type published struct{ secret *corev1.Secret }

func (p *published) Get(context.Context, string, metav1.GetOptions) (*corev1.Secret, error) {
	return p.secret, nil
}

// start serves a source as the controller does, and returns a client as the API server has it.
func start(t *testing.T, source Source) (*Server, *volumefiles.Client, *published) {
	t.Helper()
	shown, err := remote.NewServer(&runlog.Logs{}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := tls.X509KeyPair(shown.Certificate, shown.Key)
	if err != nil {
		t.Fatal(err)
	}
	server := &Server{MayAsk: shown.MayAsk, SystemNamespace: "holdfast"}
	if source != nil {
		server.Lead(t.Context(), source)
	}
	listening := httptest.NewUnstartedServer(server)
	listening.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
	listening.Config.ErrorLog = nil
	listening.StartTLS()
	t.Cleanup(listening.Close)
	secrets := &published{}
	if err := publish(t, shown, secrets, listening.Listener.Addr().String()); err != nil {
		t.Fatal(err)
	}
	return server, &volumefiles.Client{Remote: &remote.Client{Secrets: secrets}}, secrets
}

// publish has the Secret written as a controller writes it.
func publish(t *testing.T, shown *remote.Server, secrets *published, address string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	writer := &writing{secrets, cancel}
	shown.Publish(ctx, writer, address, func(context.Context) error { return nil })
	if secrets.secret == nil {
		return errors.New("nothing was published")
	}
	return nil
}

type writing struct {
	*published
	done func()
}

func (w *writing) Get(context.Context, string, metav1.GetOptions) (*corev1.Secret, error) {
	return &corev1.Secret{}, nil
}

func (w *writing) Create(ctx context.Context, secret *corev1.Secret, options metav1.CreateOptions) (*corev1.Secret, error) {
	return w.Update(ctx, secret, metav1.UpdateOptions{})
}

func (w *writing) Update(_ context.Context, secret *corev1.Secret, _ metav1.UpdateOptions) (*corev1.Secret, error) {
	w.secret = secret
	w.done()
	return secret, nil
}

// TestAnswersOfTheReader: what is sent is complete, or an error says that it is not; a refusal keeps its
// code, and only the API server can ask.
func TestAnswersOfTheReader(t *testing.T) {
	long := strings.Repeat("content ", 100_000)
	for name, test := range map[string]struct {
		source *fakeSource
		want   error
		code   int
	}{
		"whole":              {source: &fakeSource{content: long}},
		"empty":              {source: &fakeSource{}},
		"refused":            {source: &fakeSource{early: problem(http.StatusNotFound, "it is absent")}, code: http.StatusNotFound},
		"failed":             {source: &fakeSource{early: errors.New("disk")}, code: http.StatusServiceUnavailable},
		"broken off":         {source: &fakeSource{content: long, size: 1 << 30, late: errors.New("the store went away")}, want: volumefiles.ErrBroken},
		"broken off quietly": {source: &fakeSource{content: long, size: int64(len(long)) + 1}, want: volumefiles.ErrBroken},
		"failed at the end":  {source: &fakeSource{content: long, late: errors.New("digest")}, want: nil},
		"not leading":        {code: http.StatusServiceUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			var source Source
			if test.source != nil {
				source = test.source
			}
			_, client, _ := start(t, source)
			var got bytes.Buffer
			begun := int64(-1)
			err := client.Copy(t.Context(), &volumefiles.Request{Namespace: "shop", Kind: volumefiles.Content}, func(size int64) { begun = size }, &got)
			refused, isRefused := errors.AsType[*volumefiles.Problem](err)
			switch {
			case test.code != 0:
				if !isRefused || refused.Code != test.code || begun >= 0 || got.Len() > 0 {
					t.Errorf("it is answered with %v after %d bytes", err, got.Len())
				}
			case test.want != nil:
				if !errors.Is(err, test.want) {
					t.Errorf("it ends with %v", err)
				}
			case name == "failed at the end":
				// All bytes have come, each checked before it was sent: the failure may come too late.
			case err != nil || got.String() != test.source.content || begun != int64(got.Len()):
				t.Errorf("it ends with %v after %d bytes of %d", err, got.Len(), begun)
			}
		})
	}
	_, client, secrets := start(t, &fakeSource{content: long})
	list, err := client.List(t.Context(), &volumefiles.Request{Kind: volumefiles.Folder, Path: "/a", Continue: "x"})
	if err != nil || list.Path != "/a" || list.Continue != "x" {
		t.Errorf("a list is %+v, %v", list, err)
	}
	secrets.secret.Data["token"] = []byte("guessed")
	if _, err := client.List(t.Context(), &volumefiles.Request{Kind: volumefiles.Folder}); !errors.Is(err, remote.ErrUnreachable) || !strings.Contains(err.Error(), "401") {
		t.Errorf("with another token: %v", err)
	}
}

// TestPlacesOfTheReader: one namespace does not take all places, an answer gives its place back however
// it ends, and what does not get one is told so.
func TestPlacesOfTheReader(t *testing.T) {
	source := &fakeSource{content: "x", entered: make(chan struct{}), leave: make(chan struct{})}
	server, client, _ := start(t, source)
	var asking sync.WaitGroup
	errs := make(chan error, 100)
	ask := func(ctx context.Context, namespace string) {
		asking.Go(func() {
			errs <- client.Copy(ctx, &volumefiles.Request{Namespace: namespace, Kind: volumefiles.Content}, func(int64) {}, io.Discard)
		})
	}
	for range perNamespace {
		ask(t.Context(), "shop")
		<-source.entered
	}
	// A third of the namespace is refused, and others are not.
	ask(t.Context(), "shop")
	if refused, ok := errors.AsType[*volumefiles.Problem](<-errs); !ok || refused.Code != http.StatusTooManyRequests || !strings.Contains(refused.Message, "shop") {
		t.Errorf("one too many of a namespace: %v", refused)
	}
	gone, leave := context.WithCancel(t.Context())
	for range atOnce - perNamespace {
		ask(gone, "holdfast")
		<-source.entered
	}
	ask(t.Context(), "blog")
	if refused, ok := errors.AsType[*volumefiles.Problem](<-errs); !ok || refused.Code != http.StatusTooManyRequests || strings.Contains(refused.Message, "shop") {
		t.Errorf("one too many of all: %v", refused)
	}
	// One that waits gets the place of one who goes away.
	ask(t.Context(), "blog")
	leave()
	<-source.entered
	close(source.leave)
	asking.Wait()
	close(errs)
	failed := 0
	for err := range errs {
		if err != nil {
			failed++
		}
	}
	if failed != atOnce-perNamespace {
		t.Errorf("%d answers have failed, and %d clients went away", failed, atOnce-perNamespace)
	}
	var left string
	if err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		server.mu.Lock()
		defer server.mu.Unlock()
		left = fmt.Sprint(server.places)
		return left == "map[]", nil // the last answers end behind their clients
	}); err != nil {
		t.Errorf("places are still taken: %s", left)
	}
}
