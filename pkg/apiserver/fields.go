// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// strictFields refuses unknown fields unless the client chooses otherwise. Kubernetes' default drops them with a
// rarely shown warning: a backup with a misspelt includedNamespaces would include all namespaces. It also removes
// the status from patches, which input does not decode: apply resends it.
type strictFields struct{ handler http.Handler }

const fieldValidation = "fieldValidation"

// ServeHTTP implements http.Handler.
func (s strictFields) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	info, ok := genericapirequest.RequestInfoFrom(r.Context())
	if ok && info.IsResourceRequest && info.APIGroup == v1alpha1.GroupName && writes(r.Method) {
		if query := r.URL.Query(); query.Get(fieldValidation) == "" {
			query.Set(fieldValidation, metav1.FieldValidationStrict)
			address := *r.URL
			address.RawQuery = query.Encode()
			r = r.WithContext(r.Context())
			r.URL = &address
		}
		if r.Method == http.MethodPatch && info.Subresource == "" {
			r = patchWithoutStatus(r)
		}
	}
	s.handler.ServeHTTP(w, r)
}

const maxPatch = 3 << 20 // the server's maximum

// patchWithoutStatus returns a request whose patch has no status. The server refuses unreadable patches.
func patchWithoutStatus(r *http.Request) *http.Request {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxPatch+1))
	rest := r.Body
	r = r.WithContext(r.Context())
	if without, ok := withoutStatus(body); ok && err == nil && len(body) <= maxPatch {
		body = without
		r.ContentLength = int64(len(body))
	}
	r.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(body), rest), rest}
	return r
}

func writes(method string) bool {
	return method == http.MethodPost || method == http.MethodPut || method == http.MethodPatch
}

// input reads and writes the group's objects, without protobuf, and ignores any status: exported objects have one,
// and Velero's has other fields.
type input struct{ withoutProtobuf }

// DecoderToVersion implements runtime.NegotiatedSerializer.
func (s input) DecoderToVersion(decoder runtime.Decoder, version runtime.GroupVersioner) runtime.Decoder {
	return anyStatus{s.withoutProtobuf.DecoderToVersion(decoder, version)}
}

type anyStatus struct{ runtime.Decoder }

// Decode implements runtime.Decoder.
func (d anyStatus) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	object, kind, err := d.Decoder.Decode(data, defaults, into)
	if err == nil {
		return object, kind, nil
	}
	strict, ok := runtime.AsStrictDecodingError(err)
	if !ok || object == nil {
		if without, ok := withoutStatus(data); ok {
			if object, kind, err := d.Decoder.Decode(without, defaults, into); object != nil {
				return object, kind, err
			}
		}
		if kind != nil && object == nil {
			if at := unreadable(data, *kind); at != "" {
				err = fmt.Errorf("%s: %w", at, err)
			}
		}
		return object, kind, err
	}
	rest := slices.DeleteFunc(slices.Clone(strict.Errors()), func(err error) bool {
		return strings.HasPrefix(err.Error(), `unknown field "status.`)
	})
	if len(rest) == 0 {
		return object, kind, nil
	}
	return object, kind, runtime.NewStrictDecodingError(rest)
}

// withoutStatus returns an object, merge patch or JSON patch without its status, and whether it had one.
func withoutStatus(data []byte) ([]byte, bool) {
	plain, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return nil, false
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(plain, &fields) == nil {
		if fields["status"] == nil {
			return nil, false
		}
		delete(fields, "status")
		without, err := json.Marshal(fields)
		return without, err == nil
	}
	var operations []map[string]json.RawMessage
	if json.Unmarshal(plain, &operations) != nil {
		return nil, false
	}
	rest := slices.DeleteFunc(slices.Clone(operations), func(operation map[string]json.RawMessage) bool {
		var does, path string
		return json.Unmarshal(operation["op"], &does) == nil && does != "test" &&
			json.Unmarshal(operation["path"], &path) == nil && (path == "/status" || strings.HasPrefix(path, "/status/"))
	})
	without, err := json.Marshal(rest)
	return without, err == nil && len(rest) < len(operations)
}

// unreadable returns the path of the first field whose own decoder, as a duration's, refuses it.
func unreadable(data []byte, kind schema.GroupVersionKind) string {
	plain, err := yaml.YAMLToJSON(data)
	if err != nil {
		return ""
	}
	object, err := Scheme.New(kind)
	if err != nil {
		return ""
	}
	return unreadableIn("", plain, reflect.TypeOf(object))
}

var decodesItself = reflect.TypeFor[json.Unmarshaler]()

func unreadableIn(at string, data json.RawMessage, of reflect.Type) string {
	for of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	if reflect.PointerTo(of).Implements(decodesItself) {
		if json.Unmarshal(data, reflect.New(of).Interface()) != nil {
			return at
		}
		return ""
	}
	switch of.Kind() {
	case reflect.Struct:
		var values map[string]json.RawMessage
		if json.Unmarshal(data, &values) != nil {
			return ""
		}
		for field := range of.Fields() {
			name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
			value, below := data, at
			if name != "" && !strings.Contains(options, "inline") {
				value, below = values[name], strings.TrimPrefix(at+"."+name, ".")
			}
			if value == nil {
				continue
			}
			if found := unreadableIn(below, value, field.Type); found != "" {
				return found
			}
		}
	case reflect.Slice:
		var values []json.RawMessage
		if json.Unmarshal(data, &values) != nil {
			return ""
		}
		for i, value := range values {
			if found := unreadableIn(fmt.Sprintf("%s[%d]", at, i), value, of.Elem()); found != "" {
				return found
			}
		}
	}
	return ""
}
