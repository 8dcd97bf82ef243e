// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"
	"gocloud.dev/gcerrors"
)

// Kinds of errors, for errors.Is. An error without a kind refuses one request.
var (
	ErrNotFound = errors.New("no such object")
	ErrExists   = errors.New("the object exists")
	ErrRange    = errors.New("the object has no such part")
	// ErrChanged: the object to remove was replaced.
	ErrChanged     = errors.New("the object is another one by now")
	ErrUnavailable = errors.New("the store is unavailable")
	ErrDenied      = errors.New("the store denies access")
	// ErrName: the store would change the name.
	ErrName = errors.New("the store can't keep an object of this name")
	// ErrNoBucket is also ErrUnavailable.
	ErrNoBucket = fmt.Errorf("%w: the bucket does not exist", ErrUnavailable)
)

// Reasons that several kinds of stores give.
const (
	noBucket     = "the bucket does not exist"
	anotherWrite = "another write of the same object is under way"
)

var (
	errEnded    = errors.New("the write has already ended")
	errChecksum = errors.New("the object was read with other bytes than its checksum says")
)

// opError has stable words: the cause's may vary, or quote the request.
type opError struct {
	operation, key string
	reason         string
	kind           error
	cause          error
}

func (e *opError) Error() string {
	return strings.TrimRight(e.operation+" "+e.key, " ") + ": " + e.reason
}

func (e *opError) Unwrap() []error {
	if e.kind == nil {
		return []error{e.cause}
	}
	return []error{e.kind, e.cause}
}

// Reason returns why an operation failed in stable words, without the key, for a condition. Other
// errors return their text.
func Reason(err error) string {
	if failed, ok := errors.AsType[*opError](err); ok {
		return failed.reason
	}
	return err.Error()
}

func explain(operation, key string, err error) error {
	if err == nil {
		return nil
	}
	if _, explained := errors.AsType[*opError](err); explained {
		return err
	}
	reason, kind := classify(err)
	return &opError{operation: operation, key: key, reason: reason, kind: kind, cause: err}
}

func classify(err error) (reason string, kind error) {
	if failed, ok := errors.AsType[*credentialsError](err); ok && !errors.Is(err, context.Canceled) {
		return classifyCredentials(failed)
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
		return "the store did not answer in time", ErrUnavailable
	}
	if errors.Is(err, context.Canceled) {
		return "the operation was cancelled", nil
	}
	if errors.Is(err, ErrChanged) {
		return ErrChanged.Error(), ErrChanged
	}
	for _, plain := range []error{errOrder, errChecksum, errHierarchy} {
		if errors.Is(err, plain) {
			return plain.Error(), nil
		}
	}
	if past, ok := errors.AsType[*asOfError](err); ok {
		return past.Error(), ErrAsOf
	}
	if errors.Is(err, ErrNotFound) {
		return ErrNotFound.Error(), ErrNotFound
	}
	if foreign, ok := errors.AsType[*foreignAnswer](err); ok {
		return foreign.Error(), ErrUnavailable
	}
	if token, ok := errors.AsType[*tokenError](err); ok {
		return classifyToken(token)
	}
	if answer, ok := errors.AsType[*answerError](err); ok {
		return classifyGCS(answer)
	}
	if answer, ok := errors.AsType[*azcore.ResponseError](err); ok {
		return classifyAzure(answer.ErrorCode, answer.StatusCode)
	}
	if answer, ok := errors.AsType[smithy.APIError](err); ok {
		return classifyS3(answer.ErrorCode(), status(err))
	}
	if code := status(err); code != 0 {
		return classifyS3("", code)
	}
	if reason, kind := classifyTransport(err); reason != "" {
		return reason, kind
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return classifyErrno(errno)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist) || gcerrors.Code(err) == gcerrors.NotFound:
		return ErrNotFound.Error(), ErrNotFound
	case errors.Is(err, fs.ErrExist) || gcerrors.Code(err) == gcerrors.FailedPrecondition:
		return ErrExists.Error(), ErrExists
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "the connection to the store broke", ErrUnavailable
	}
	if failed, ok := errors.AsType[*smithy.OperationError](err); ok && failed.ServiceID == "S3" {
		// Without an answer or a network fault, signing failed.
		return noCredentials, ErrDenied
	}
	return "the store can't do that", nil
}

func status(err error) int {
	if response, ok := errors.AsType[*awshttp.ResponseError](err); ok {
		return response.HTTPStatusCode()
	}
	return 0
}

func classifyS3(code string, status int) (reason string, kind error) {
	switch code {
	case "NoSuchKey", "NotFound":
		return ErrNotFound.Error(), ErrNotFound
	case "NoSuchBucket":
		return noBucket, ErrNoBucket
	case "InvalidRange":
		return ErrRange.Error(), ErrRange
	case "PreconditionFailed":
		return ErrExists.Error(), ErrExists
	case "ConditionalRequestConflict":
		return anotherWrite, ErrUnavailable
	}
	return classifyStatus(code, status)
}

func classifyStatus(code string, status int) (reason string, kind error) {
	said := ""
	// Without a code, the SDK uses the status's text.
	if code != "" && code != strings.ReplaceAll(http.StatusText(status), " ", "") && len(code) < 64 && !strings.ContainsFunc(code, notLetter) {
		said = " (" + code + ")"
	}
	switch {
	case code == "RequestTimeTooSkewed":
		return "the clocks of the store and of this machine differ by too much: set the wrong one" + said, fmt.Errorf("%w: %w", ErrDenied, ErrClock)
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return "the store denies access" + said, ErrDenied
	case status == http.StatusNotFound:
		return ErrNotFound.Error(), ErrNotFound
	case status == http.StatusPreconditionFailed:
		return ErrExists.Error(), ErrExists
	case status == http.StatusNotImplemented:
		return "the store does not support a request that Holdfast needs, as a conditional write: docs/locations.md", ErrUnavailable
	case status == http.StatusRequestedRangeNotSatisfiable:
		return ErrRange.Error(), ErrRange
	case isBusy(status):
		return "the store can't answer now" + said, ErrUnavailable
	case status >= 300 && status < 400:
		return "the bucket is elsewhere: check region and endpoint" + said, ErrUnavailable
	default:
		return "the store refuses the request" + said, nil
	}
}

func notLetter(r rune) bool { return (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') }

func classifyTransport(err error) (reason string, kind error) {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		if _, ok := errors.AsType[x509.HostnameError](err); ok {
			return "the certificate of the endpoint is for another host", ErrUnavailable
		}
		return "the certificate of the endpoint can't be verified: check caBundle", ErrUnavailable
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return "the endpoint does not speak TLS: check its URL", ErrUnavailable
	}
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		return "the host of the endpoint can't be found", ErrUnavailable
	}
	_, isURL := errors.AsType[*url.Error](err)
	_, isNet := errors.AsType[*net.OpError](err)
	if isURL || isNet {
		if errno, ok := errors.AsType[syscall.Errno](err); ok {
			return "the store can't be reached: " + errno.Error(), ErrUnavailable
		}
		if failed, ok := errors.AsType[net.Error](err); ok && failed.Timeout() {
			return "the store did not answer in time", ErrUnavailable
		}
		return "the store can't be reached", ErrUnavailable
	}
	return "", nil
}

func classifyErrno(errno syscall.Errno) (reason string, kind error) {
	switch errno {
	case syscall.ENOENT, syscall.ENOTDIR:
		return ErrNotFound.Error(), ErrNotFound
	case syscall.EEXIST:
		return ErrExists.Error(), ErrExists
	case syscall.EACCES, syscall.EPERM, syscall.EROFS:
		return "the folder denies access: " + errno.Error(), ErrDenied
	case syscall.EIO, syscall.ESTALE, syscall.ENOTCONN, syscall.ETIMEDOUT, syscall.EHOSTDOWN, syscall.EHOSTUNREACH, syscall.ENODEV, syscall.ENXIO:
		return "the folder can't be used: " + errno.Error(), ErrUnavailable
	default:
		return errno.Error(), nil
	}
}
