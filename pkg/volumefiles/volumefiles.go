// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package volumefiles lets the API server have a volume backup's files read by the leading
// controller, which has the keys of the repositories. Only the API server can ask, by package
// remote. It checks the caller's right in a namespace; the reader checks whether the volume is of
// that very namespace. See docs/design/files.md.
package volumefiles

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/runlog/remote"
)

const (
	// Path is where files are asked for.
	Path = "/volume-files/"
	// MaxRequest bounds a request: a path takes 8 KiB at most.
	MaxRequest = 64 << 10
	// DefaultLimit is how many entries a page has by default, MaxLimit at most.
	DefaultLimit = 500
	MaxLimit     = 10_000

	// begins bounds the time until an answer begins: kube-apiserver ends a request after a minute.
	begins = 50 * time.Second
	// silence bounds pauses in an answer.
	silence   = time.Minute
	maxAnswer = 16 << 20
)

// Kind is a request's kind.
type Kind string

// The kinds of requests.
const (
	Folder  Kind = "Folder"
	Content Kind = "Content"
	Link    Kind = "Link"
)

// Request asks for a folder, the content of a file, or the target of a link.
type Request struct {
	// StorageLocation has the backup StoreName of this uid, and Volume is one of its volumes.
	StorageLocation string          `json:"storageLocation"`
	StoreName       string          `json:"storeName"`
	BackupUID       types.UID       `json:"backupUID"`
	Volume          format.VolumeID `json:"volume"`
	// Namespace is where the caller may read volumes.
	Namespace string `json:"namespace"`
	Kind      Kind   `json:"kind"`
	Path      string `json:"path"`
	// Limit and Continue choose a folder's page.
	Limit    int    `json:"limit,omitempty"`
	Continue string `json:"continue,omitempty"`
	// Offset and Length choose a part of a file; a Length of 0 is the rest.
	Offset int64 `json:"offset,omitempty"`
	Length int64 `json:"length,omitempty"`
}

// Problem is why a request was not answered.
type Problem struct {
	// Code is an HTTP status.
	Code    int    `json:"code"`
	Message string `json:"message"`
	// Detail is for users that may know what is wrong with a store.
	Detail string `json:"detail,omitempty"`
}

// Error implements error.
func (p *Problem) Error() string {
	if p.Detail == "" {
		return p.Message
	}
	return p.Message + ": " + p.Detail
}

// ErrBroken means that an answer is incomplete.
var ErrBroken = errors.New("the content breaks off")

// Client asks the controller that leads.
type Client struct{ Remote *remote.Client }

func (c *Client) do(ctx context.Context, request *Request) (*http.Response, error) {
	body, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	response, err := c.Remote.Do(ctx, http.MethodPost, Path, bytes.NewReader(body), begins)
	if err != nil {
		return nil, err
	}
	if response.StatusCode == http.StatusOK {
		return response, nil
	}
	defer func() { _ = response.Body.Close() }()
	problem := &Problem{}
	if json.NewDecoder(io.LimitReader(response.Body, MaxRequest)).Decode(problem) != nil || problem.Code != response.StatusCode {
		return nil, fmt.Errorf("%w: it answers %s", remote.ErrUnreachable, response.Status)
	}
	return nil, problem
}

// List returns a page of a folder. It fails with a Problem, or with remote.ErrUnreachable.
func (c *Client) List(ctx context.Context, request *Request) (*v1alpha1.VolumeFileList, error) {
	ctx, cancel := context.WithTimeout(ctx, begins)
	defer cancel()
	response, err := c.do(ctx, request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	list := &v1alpha1.VolumeFileList{}
	if err := json.NewDecoder(io.LimitReader(response.Body, maxAnswer)).Decode(list); err != nil {
		return nil, fmt.Errorf("%w: its answer breaks off: %w", remote.ErrUnreachable, err)
	}
	return list, nil
}

// Copy writes the content of a file, or the target of a link. It calls begin with the number of
// bytes before the first. Without an error it has written as many; ErrBroken means that it has not.
func (c *Client) Copy(ctx context.Context, request *Request, begin func(size int64), to io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	response, err := c.do(ctx, request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.ContentLength < 0 {
		return fmt.Errorf("%w: it does not say how much it sends", remote.ErrUnreachable)
	}
	begin(response.ContentLength)
	silent := time.AfterFunc(silence, cancel)
	defer silent.Stop()
	buffer := make([]byte, 64<<10)
	for sent := int64(0); ; {
		silent.Reset(silence)
		n, err := response.Body.Read(buffer)
		silent.Stop()
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return err
			}
			sent += int64(n)
		}
		switch {
		case err == io.EOF && sent == response.ContentLength:
			return nil
		case err == io.EOF:
			err = io.ErrUnexpectedEOF
			fallthrough
		case err != nil:
			return fmt.Errorf("%w: after %d of %d bytes: %w", ErrBroken, sent, response.ContentLength, err)
		}
	}
}
