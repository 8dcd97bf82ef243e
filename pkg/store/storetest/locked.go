// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"bytes"
	"crypto/md5"
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"io"
	"net/http"
	"strings"
	"sync"
)

// Locked makes an S3 server as strict as AWS with Object Lock and a default retention. It refuses
// objects and parts with a missing or wrong checksum, parts with an unannounced one, and chunked
// bodies, like most stores.
func Locked(next http.Handler) http.Handler {
	var announced sync.Map // whether an object's parts have a CRC32, by its path
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		switch {
		case r.Method == http.MethodPost && query.Has("uploads"):
			announced.Store(r.URL.Path, r.Header.Get("x-amz-checksum-algorithm") == "CRC32")
		case r.Method == http.MethodPut:
			body, err := io.ReadAll(r.Body)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
			crc := r.Header.Get("x-amz-checksum-crc32")
			known, _ := announced.Load(r.URL.Path)
			sum := md5.Sum(body)
			switch {
			case strings.Contains(r.Header.Get("Content-Encoding"), "aws-chunked"):
				refuse(w, "NotImplemented", "chunked bodies are not supported")
				return
			case crc == "" && r.Header.Get("Content-MD5") == "":
				refuse(w, "InvalidRequest", "Content-MD5 OR x-amz-checksum- HTTP header is required for Put Object requests with Object Lock parameters")
				return
			case crc != "" && query.Has("partNumber") && known != true:
				refuse(w, "InvalidRequest", "Checksum Type mismatch occurred, expected checksum Type: null, actual checksum Type: crc32")
				return
			case crc != "" && crc != encode(binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE(body))),
				crc == "" && r.Header.Get("Content-MD5") != encode(sum[:]):
				refuse(w, "BadDigest", "the checksum does not fit")
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

func encode(sum []byte) string { return base64.StdEncoding.EncodeToString(sum) }

func refuse(w http.ResponseWriter, code, message string) {
	w.WriteHeader(http.StatusBadRequest)
	_, _ = io.WriteString(w, "<Error><Code>"+code+"</Code><Message>"+message+"</Message></Error>")
}
