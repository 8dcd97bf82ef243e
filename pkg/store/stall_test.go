// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
)

// silentStore is a client whose connections lead to serve.
func silentStore(serve func(conn net.Conn)) *http.Client {
	client := awshttp.NewBuildableClient().WithTransportOptions(func(transport *http.Transport) {
		transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
			here, there := net.Pipe()
			go serve(there)
			return here, nil
		}
	})
	return noticeStalls(client).(*http.Client)
}

// A request whose connection says nothing fails, and is an unavailable store. One that goes
// on takes as long as it takes.
func TestStalls(t *testing.T) {
	const answer = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n"
	say := func(conn net.Conn, text string) { _, _ = io.WriteString(conn, text) }
	for name, test := range map[string]struct {
		serve    func(conn net.Conn)
		body     int64
		stalls   bool
		duration time.Duration
	}{
		"nothing is read":     {func(net.Conn) {}, 0, true, stallTimeout},
		"nothing is answered": {func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }, 0, true, stallTimeout},
		"the answer breaks off": {func(conn net.Conn) {
			go func() { _, _ = io.Copy(io.Discard, conn) }()
			time.Sleep(stallTimeout / 2)
			say(conn, answer+"12345")
		}, 0, true, stallTimeout * 3 / 2},
		"the answer is slow": {func(conn net.Conn) {
			go func() { _, _ = io.Copy(io.Discard, conn) }()
			time.Sleep(time.Second)
			say(conn, answer)
			for range 10 {
				time.Sleep(stallTimeout - time.Second)
				say(conn, "1")
			}
		}, 0, false, 10*(stallTimeout-time.Second) + time.Second},
		// Its answer is awaited from its beginning on.
		"the request is slow": {func(conn net.Conn) {
			for range 4 {
				time.Sleep(stallTimeout - time.Second)
				_, _ = io.CopyN(io.Discard, conn, stallPiece)
			}
			go func() { _, _ = io.Copy(io.Discard, conn) }()
			time.Sleep(stallTimeout - time.Second)
			say(conn, answer+"1234567890")
		}, 4 * stallPiece, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conns := make(chan net.Conn, 1)
				client := silentStore(func(conn net.Conn) { conns <- conn; test.serve(conn) })
				began := time.Now()
				request, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://store/", io.LimitReader(endless{}, test.body))
				if err != nil {
					t.Fatal(err)
				}
				response, err := client.Do(request)
				if err == nil {
					_, err = io.ReadAll(response.Body)
					_ = response.Body.Close()
				}
				if took := time.Since(began); test.duration != 0 && took != test.duration {
					t.Errorf("it took %s, not %s", took, test.duration)
				}
				if !test.stalls && err != nil {
					t.Error(err)
				}
				if test.stalls {
					if reason, kind := classify(err); kind != ErrUnavailable || reason != "the store did not answer in time" {
						t.Errorf("%v is %q, %v", err, reason, kind)
					}
				}
				client.CloseIdleConnections()
				_ = (<-conns).Close()
			})
		})
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }
