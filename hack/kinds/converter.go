// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/util/cert"
)

// Converter is the conversion webhook of the converted kind of a set, on loopback and with a CA of
// its own. The API server asks it whenever it reads or writes an object in a version that is not
// the stored one.
type Converter struct {
	server    *httptest.Server
	authority []byte
	converted atomic.Int64
}

// NewConverter starts one, which is to run until the set is deleted.
func NewConverter() (*Converter, error) {
	c := &Converter{}
	chain, key, err := cert.GenerateSelfSignedCertKey("127.0.0.1", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return nil, err
	}
	c.authority = chain // its last one is that of the CA
	c.server = httptest.NewUnstartedServer(http.HandlerFunc(c.serve))
	c.server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	c.server.StartTLS()
	return c, nil
}

// Close stops it.
func (c *Converter) Close() { c.server.Close() }

// Converted is how many objects it has converted.
func (c *Converter) Converted() int64 { return c.converted.Load() }

// conversionReview is what is used of ConversionReview, of apiextensions.k8s.io/v1.
type conversionReview struct {
	metav1.TypeMeta `json:",inline"`
	Request         *conversionRequest  `json:"request,omitempty"`
	Response        *conversionResponse `json:"response,omitempty"`
}

type conversionRequest struct {
	UID               string            `json:"uid"`
	DesiredAPIVersion string            `json:"desiredAPIVersion"`
	Objects           []json.RawMessage `json:"objects"`
}

type conversionResponse struct {
	UID              string            `json:"uid"`
	ConvertedObjects []json.RawMessage `json:"convertedObjects"`
	Result           metav1.Status     `json:"result"`
}

func (c *Converter) serve(w http.ResponseWriter, r *http.Request) {
	var review conversionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
		http.Error(w, fmt.Sprintf("it is no review: %v", err), http.StatusBadRequest)
		return
	}
	response := &conversionResponse{UID: review.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
	for _, from := range review.Request.Objects {
		to, err := convert(from, review.Request.DesiredAPIVersion)
		if err != nil {
			response.ConvertedObjects = nil
			response.Result = metav1.Status{Status: metav1.StatusFailure, Message: err.Error()}
			break
		}
		response.ConvertedObjects = append(response.ConvertedObjects, to)
		c.converted.Add(1)
	}
	review.Request, review.Response = nil, response
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review) // whoever does not get it asks again
}

// convert gives an object in another version: what is spec.text in writtenVersion, is spec.lines in
// storedVersion.
func convert(raw []byte, version string) ([]byte, error) {
	o := &unstructured.Unstructured{}
	if err := o.UnmarshalJSON(raw); err != nil { // which keeps whole numbers as they are
		return nil, err
	}
	o.SetAPIVersion(version)
	text, written, err := unstructured.NestedString(o.Object, "spec", "text")
	if err != nil {
		return nil, err
	}
	lines, stored, err := unstructured.NestedStringSlice(o.Object, "spec", "lines")
	if err != nil {
		return nil, err
	}
	unstructured.RemoveNestedField(o.Object, "spec", "text")
	unstructured.RemoveNestedField(o.Object, "spec", "lines")
	switch wanted := o.GroupVersionKind().Version; {
	case wanted == storedVersion && written:
		err = unstructured.SetNestedStringSlice(o.Object, strings.Split(text, "\n"), "spec", "lines")
	case wanted == writtenVersion && stored:
		err = unstructured.SetNestedField(o.Object, strings.Join(lines, "\n"), "spec", "text")
	default:
		err = fmt.Errorf("%s %s can't be converted to %s", o.GetKind(), o.GetName(), version)
	}
	if err != nil {
		return nil, err
	}
	return o.MarshalJSON()
}
