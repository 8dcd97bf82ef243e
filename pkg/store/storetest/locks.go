// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Locks are the objects' locks in a fake bucket, by Wrap for FakeS3, as strict as Locked. Without
// versions, a removal or a write forgets the lock.
type Locks struct {
	mu        sync.Mutex
	of        map[string]ObjectLock // by key
	announced map[string]ObjectLock // of uploads in parts
	extended  int
	// Skew is how far the store's clock is ahead.
	Skew time.Duration
}

// ObjectLock is an object's lock.
type ObjectLock struct {
	Mode  string
	Until time.Time
}

// NewLocks returns no locks.
func NewLocks() *Locks {
	return &Locks{of: map[string]ObjectLock{}, announced: map[string]ObjectLock{}}
}

// All returns all objects' locks, by key.
func (l *Locks) All() map[string]ObjectLock {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.of)
}

// Set replaces an object's lock; the zero value removes it.
func (l *Locks) Set(key string, lock ObjectLock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if delete(l.of, key); lock.Mode != "" {
		l.of[key] = lock
	}
}

// Extended counts the extensions.
func (l *Locks) Extended() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.extended
}

// Wrap locks the objects of a server.
func (l *Locks) Wrap(next http.Handler) http.Handler {
	strict := Locked(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Date", time.Now().Add(l.Skew).UTC().Format(http.TimeFormat))
		_, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		query := r.URL.Query()
		switch {
		case query.Has("object-lock"):
			answerXML(w, "<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled></ObjectLockConfiguration>")
		case query.Has("retention"):
			l.retention(w, r, next, key)
		case key == "" || r.Method == http.MethodGet || r.Method == http.MethodHead:
			next.ServeHTTP(w, r)
		case query.Has("partNumber"):
			strict.ServeHTTP(w, r)
		default:
			l.write(w, r, strict, key)
		}
	})
}

func (l *Locks) write(w http.ResponseWriter, r *http.Request, next http.Handler, key string) {
	query := r.URL.Query()
	lock := ObjectLock{Mode: r.Header.Get("x-amz-object-lock-mode")}
	if lock.Mode != "" {
		var err error
		if lock.Until, err = time.Parse(time.RFC3339, r.Header.Get("x-amz-object-lock-retain-until-date")); err != nil {
			refuse(w, "InvalidArgument", err.Error())
			return
		}
	}
	recorder := &statusRecorder{ResponseWriter: w}
	next.ServeHTTP(recorder, r)
	if !recorder.isGood() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case r.Method == http.MethodPost && query.Has("uploads"):
		l.announced[key] = lock
		return
	case r.Method == http.MethodPost && query.Has("uploadId"):
		lock = l.announced[key]
	case query.Has("uploadId"):
		return
	}
	if delete(l.of, key); lock.Mode != "" {
		l.of[key] = lock
	}
}

type retention struct {
	XMLName         xml.Name `xml:"Retention"`
	Mode            string
	RetainUntilDate time.Time
}

// retention serves a lock, which is never shortened, and keeps its mode.
func (l *Locks) retention(w http.ResponseWriter, r *http.Request, next http.Handler, key string) {
	head := r.Clone(r.Context())
	head.Method, head.URL.RawQuery, head.Body = http.MethodHead, "", http.NoBody
	found := &statusRecorder{ResponseWriter: discard{http.Header{}}}
	if next.ServeHTTP(found, head); !found.isGood() {
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, "<Error><Code>NoSuchKey</Code></Error>")
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	lock, has := l.of[key]
	if r.Method == http.MethodGet {
		if !has {
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, "<Error><Code>NoSuchObjectLockConfiguration</Code></Error>")
			return
		}
		answerXML(w, fmt.Sprintf("<Retention><Mode>%s</Mode><RetainUntilDate>%s</RetainUntilDate></Retention>", lock.Mode, lock.Until.UTC().Format(time.RFC3339)))
		return
	}
	var asked retention
	if err := xml.NewDecoder(r.Body).Decode(&asked); err != nil {
		refuse(w, "MalformedXML", err.Error())
		return
	}
	if has && (asked.Mode != lock.Mode || asked.RetainUntilDate.Before(lock.Until)) {
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, "<Error><Code>AccessDenied</Code></Error>")
		return
	}
	l.of[key] = ObjectLock{Mode: asked.Mode, Until: asked.RetainUntilDate}
	l.extended++
}

func answerXML(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Type", "application/xml")
	_, _ = io.WriteString(w, text)
}

type statusRecorder struct {
	http.ResponseWriter
	status int
}

func (s *statusRecorder) WriteHeader(status int) {
	s.status = status
	s.ResponseWriter.WriteHeader(status)
}

// isGood reports success. An answer without a status or a body has 200.
func (s *statusRecorder) isGood() bool { return s.status == 0 || s.status/100 == http.StatusOK/100 }

type discard struct{ header http.Header }

func (d discard) Header() http.Header { return d.header }

func (discard) Write(p []byte) (int, error) { return len(p), nil }

func (discard) WriteHeader(int) {}
