// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package streamed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/runlog/remote"
)

// running are the logs of a controller.
type running func(ctx context.Context, follow bool, to io.Writer) error

func (r running) Copy(ctx context.Context, _ types.UID, follow bool, to io.Writer) error {
	return r(ctx, follow, to)
}

// TestRunning: of the log of what runs, a client gets what there is, and a last line that says
// that it breaks off, or why there is none; who follows waits for who takes over.
func TestRunning(t *testing.T) {
	broken := fmt.Errorf("%w: reset", remote.ErrBroken)
	for name, test := range map[string]struct {
		follow bool
		// answers are those to one try after the other.
		answers []running
		code    int
		texts   []string
		tries   int
	}{
		"so far": {
			answers: []running{func(_ context.Context, _ bool, to io.Writer) error {
				_, err := io.WriteString(to, "line\n")
				return err
			}},
			code: 200, texts: []string{"line\n"}, tries: 1,
		},
		"nothing yet": {answers: []running{func(context.Context, bool, io.Writer) error { return nil }}, code: 200, tries: 1},
		"broken off": {
			follow: true,
			answers: []running{func(_ context.Context, _ bool, to io.Writer) error {
				_, _ = io.WriteString(to, "line\n")
				return broken
			}},
			code: 200, texts: []string{"line\n", "level=ERROR", "the log breaks off here"}, tries: 1,
		},
		"executed by nobody": {
			answers: []running{func(context.Context, bool, io.Writer) error { return remote.ErrNotExecuted }},
			code:    503, texts: []string{"another controller is about to"}, tries: 1,
		},
		"unreachable": {
			answers: []running{func(context.Context, bool, io.Writer) error { return fmt.Errorf("%w: refused", remote.ErrUnreachable) }},
			code:    503, texts: []string{"refused"}, tries: 1,
		},
		"taken over": {
			follow: true,
			answers: []running{
				func(context.Context, bool, io.Writer) error { return remote.ErrUnreachable },
				func(context.Context, bool, io.Writer) error { return remote.ErrNotExecuted },
				func(_ context.Context, follow bool, to io.Writer) error {
					if !follow {
						return errors.New("it is to be followed")
					}
					_, err := io.WriteString(to, "line\n")
					return err
				},
			},
			code: 200, texts: []string{"line\n"}, tries: 3,
		},
		"taken over by nobody": {
			follow:  true,
			answers: []running{func(context.Context, bool, io.Writer) error { return remote.ErrUnreachable }},
			code:    503, tries: followTries,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tries := 0
				logs := running(func(ctx context.Context, follow bool, to io.Writer) error {
					tries++
					return test.answers[min(tries, len(test.answers))-1](ctx, follow, to)
				})
				rest := &REST{
					Streams: &Streams{Stores: &fixture{mayKnow: true}}, Object: &v1alpha1.Backup{}, Parameters: []string{"follow"},
					Find: func(_ context.Context, _ string, parameters url.Values) (*Answer, error) {
						follow, err := Follow(parameters)
						return &Answer{What: "the log of b", ContentType: "text/plain", Running: &Running{Logs: logs, UID: "u", Follow: follow}}, err
					},
				}
				recorder := httptest.NewRecorder()
				handler, err := rest.Connect(t.Context(), "b", nil, responder{recorder})
				if err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				handler.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("/b?follow=%t", test.follow), nil))
				if recorder.Code != test.code || tries != test.tries {
					t.Errorf("%d after %d tries in %s: %s", recorder.Code, tries, time.Since(began), recorder.Body)
				}
				for _, text := range test.texts {
					if !strings.Contains(recorder.Body.String(), text) {
						t.Errorf("%q is not in %q", text, recorder.Body)
					}
				}
				if len(rest.taken) != 0 {
					t.Errorf("seats are still taken: %v", rest.taken)
				}
			})
		})
	}
}
