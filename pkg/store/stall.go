// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"net"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
)

// stallTimeout is how long a connection may be silent while an answer is awaited. Large objects take
// longer.
const stallTimeout = time.Minute

// stallPiece is the minimum to send within stallTimeout.
const stallPiece = 64 << 10

func noticeStalls(client *awshttp.BuildableClient) aws.HTTPClient {
	return client.WithTransportOptions(func(transport *http.Transport) {
		dial := transport.DialContext
		transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dial(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return stallingConn{conn}, nil
		}
	}).Freeze() // else the SDK restores its own dialler
}

// newTransport returns a transport that fails likewise. It always verifies certificates.
func newTransport() *http.Transport {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = idleConnections
	transport.MaxIdleConns = idleConnections
	dial := transport.DialContext
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return stallingConn{conn}, nil
	}
	return transport
}

// stallingConn fails after a silence of stallTimeout in both directions, since an answer may follow a
// long request. The SDK's read timeout would end a long upload.
type stallingConn struct{ net.Conn }

func (c stallingConn) Read(p []byte) (int, error) {
	if err := c.SetDeadline(time.Now().Add(stallTimeout)); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

func (c stallingConn) Write(p []byte) (written int, err error) {
	for written < len(p) && err == nil {
		if err = c.SetDeadline(time.Now().Add(stallTimeout)); err != nil {
			break
		}
		var n int
		n, err = c.Conn.Write(p[written:min(len(p), written+stallPiece)])
		written += n
	}
	return written, err
}
