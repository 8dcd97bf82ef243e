// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// faults are what goes wrong, by the file faults.json of the driver's folder, which is read at each
// request. A new content begins anew; without the file all goes well. Methods are those of the
// interface's controller, such as CreateSnapshot.
type faults struct {
	// Fail has the failures by method.
	Fail map[string]failure `json:"fail"`
	// Hang are methods that are not answered as long as they are named.
	Hang []string `json:"hang"`
	// ReadyAfter is the age at which a snapshot is ready, as 5s.
	ReadyAfter string `json:"readyAfter"`
	// PerSecond bounds the requests of a method; others get RESOURCE_EXHAUSTED. Zero is no bound.
	PerSecond int `json:"perSecond"`
}

type failure struct {
	// Code is the answer's, as UNAVAILABLE.
	Code    string `json:"code"`
	Message string `json:"message"`
	// Times is how often; zero is always.
	Times int `json:"times"`
	// After says that the work is done before: the answer is lost.
	After bool `json:"after"`
}

func (f *faults) readyAfter() time.Duration {
	after, _ := time.ParseDuration(f.ReadyAfter)
	return after
}

// hangLook is the interval of looks at whether a method still hangs.
const hangLook = 50 * time.Millisecond

// spoiler counts requests into the file calls.json of the driver's folder, and makes some fail.
type spoiler struct {
	folder string

	mu      sync.Mutex
	content []byte
	current *faults
	// failed counts the failures by method, since the faults are as they are.
	failed map[string]int
	calls  calls
	recent map[string][]time.Time
}

// calls counts the requests by method.
type calls struct {
	Calls map[string]int `json:"calls"`
	// Failed counts the calls that were answered with an error, by method.
	Failed map[string]int `json:"failed"`
}

// faults returns those of the file. A file that can't be read as such has none.
func (s *spoiler) faults() *faults {
	s.mu.Lock()
	defer s.mu.Unlock()
	content, err := os.ReadFile(filepath.Join(s.folder, "faults.json"))
	if err != nil && !os.IsNotExist(err) {
		log.Printf("the faults can't be read: %v", err)
	}
	if s.current != nil && bytes.Equal(content, s.content) {
		return s.current
	}
	s.content, s.current, s.failed = content, &faults{}, map[string]int{}
	if len(content) > 0 {
		decoder := json.NewDecoder(bytes.NewReader(content))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(s.current); err != nil {
			log.Printf("the faults are not used: %v", err)
			s.current = &faults{}
		}
	}
	return s.current
}

// intercept is a grpc.UnaryServerInterceptor.
func (s *spoiler) intercept(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (answer any, err error) {
	method := path.Base(info.FullMethod)
	defer func() { s.count(method, err) }()
	for slices.Contains(s.faults().Hang, method) {
		select {
		case <-time.After(hangLook):
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
	if most := s.faults().PerSecond; most > 0 && !s.hasRoom(method, most, time.Now()) {
		return nil, status.Errorf(codes.ResourceExhausted, "more than %d requests in a second", most)
	}
	fails, after := s.next(method)
	if fails != nil && !after {
		return nil, fails
	}
	answer, err = handler(ctx, request)
	if err == nil && fails != nil {
		return nil, fails
	}
	return answer, err
}

// next returns the failure of a method's next request, or nil.
func (s *spoiler) next(method string) (err error, after bool) {
	of, ok := s.faults().Fail[method]
	s.mu.Lock()
	defer s.mu.Unlock()
	if !ok || of.Times > 0 && s.failed[method] >= of.Times {
		return nil, false
	}
	s.failed[method]++
	var code codes.Code
	if err := code.UnmarshalJSON(fmt.Appendf(nil, "%q", of.Code)); err != nil || code == codes.OK {
		code = codes.Internal
	}
	message := of.Message
	if message == "" {
		message = "the lab told the driver to fail"
	}
	return status.Error(code, message), of.After
}

func (s *spoiler) hasRoom(method string, most int, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.recent == nil {
		s.recent = map[string][]time.Time{}
	}
	s.recent[method] = slices.DeleteFunc(s.recent[method], func(at time.Time) bool { return now.Sub(at) >= time.Second })
	if len(s.recent[method]) >= most {
		return false
	}
	s.recent[method] = append(s.recent[method], now)
	return true
}

func (s *spoiler) count(method string, failed error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls.Calls == nil {
		s.calls = calls{Calls: map[string]int{}, Failed: map[string]int{}}
	}
	s.calls.Calls[method]++
	if failed != nil {
		s.calls.Failed[method]++
	}
	content, err := json.Marshal(s.calls)
	if err == nil {
		part := filepath.Join(s.folder, ".calls.json")
		if err = os.WriteFile(part, content, 0o644); err == nil {
			err = os.Rename(part, filepath.Join(s.folder, "calls.json"))
		}
	}
	if err != nil {
		log.Printf("the requests can't be counted: %v", err)
	}
}
