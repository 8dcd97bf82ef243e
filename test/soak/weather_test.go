// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// weather is how a store behaves for who is behind the network.
type weather string

const (
	clear weather = "clear"
	slow  weather = "slow"
	// late: requests reach the store after the weather has changed, and be it that
	// who sent them has given up long ago.
	late weather = "late"
	// deaf: requests reach the store, and their answers reach nobody.
	deaf weather = "deaf"
	// away: nobody gets a connection.
	away weather = "away"
)

// Most of the time it is clear, or nothing would ever be stored.
var weathers = []weather{clear, slow, clear, late, clear, deaf, clear, away}

const (
	slowness = 100 * time.Millisecond
	// giveUp bounds how long the network keeps a request that nobody waits for.
	giveUp = time.Minute
)

// network is between the clients of a store and its server.
type network struct {
	listener net.Listener
	server   string

	mu      sync.Mutex
	weather weather
	changed chan struct{} // closed at the next change
	seen    map[weather]int
}

// newNetwork listens until ctx ends.
func newNetwork(ctx context.Context, server string) (*network, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	n := &network{listener: listener, server: server, weather: clear, changed: make(chan struct{}), seen: map[weather]int{}}
	context.AfterFunc(ctx, func() { _ = listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go n.carry(ctx, client)
		}
	}()
	return n, nil
}

func (n *network) address() string { return n.listener.Addr().String() }

func (n *network) set(w weather) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.weather == w {
		return
	}
	n.weather = w
	n.seen[w]++
	close(n.changed)
	n.changed = make(chan struct{})
}

// change changes the weather at random until ctx ends, and leaves it clear.
func (n *network) change(ctx context.Context, random *rand.Rand) {
	defer n.set(clear)
	for pause(ctx, between(random, 200*time.Millisecond, 4*time.Second)) {
		n.set(weathers[random.IntN(len(weathers))])
	}
}

func (n *network) now() (weather, <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.weather, n.changed
}

// carry carries one connection. What the client has sent reaches the server also
// when the client is gone.
func (n *network) carry(ctx context.Context, client net.Conn) {
	defer client.Close()
	if w, _ := n.now(); w == away {
		return
	}
	server, err := net.Dial("tcp", n.server)
	if err != nil {
		return
	}
	defer server.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()

	answered := make(chan struct{})
	go func() {
		defer close(answered)
		buffer := make([]byte, 64<<10)
		for {
			count, err := server.Read(buffer)
			if w, _ := n.now(); w == deaf {
				_ = client.Close()
				_, _ = io.Copy(io.Discard, server) // the server is not to notice
				return
			}
			if count > 0 {
				if _, err := client.Write(buffer[:count]); err != nil {
					_, _ = io.Copy(io.Discard, server)
					return
				}
			}
			if err != nil {
				return
			}
		}
	}()
	buffer := make([]byte, 64<<10)
	for {
		count, err := client.Read(buffer)
		if count > 0 && n.deliver(ctx, server, buffer[:count]) != nil {
			return
		}
		if err != nil {
			break
		}
	}
	if half, ok := server.(*net.TCPConn); ok {
		_ = half.CloseWrite()
	}
	select {
	case <-answered:
	case <-time.After(giveUp):
	}
}

func (n *network) deliver(ctx context.Context, server net.Conn, content []byte) error {
	deadline := time.After(giveUp)
	for {
		w, changed := n.now()
		switch w {
		case away:
			return errors.New("the connection is cut")
		case slow:
			pause(ctx, slowness)
		case late:
			select {
			case <-changed:
				continue
			case <-deadline:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		_, err := server.Write(content)
		return err
	}
}

// pause waits, and reports whether ctx goes on.
func pause(ctx context.Context, duration time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(duration):
		return true
	}
}

func between(random *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(random.Int64N(int64(most-least)))
}
