// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"encoding/json"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxDurationText bounds the kept text of a Duration. A longer one is rewritten.
const maxDurationText = 64

// Duration keeps its text: 720h does not become 720h0m0s. Compare the time.Duration in it.
// +kubebuilder:validation:Type=string
type Duration struct {
	time.Duration `json:"-"`
	// Text is the read text, if time.Duration would write another. It counts while it means the
	// duration.
	Text string `json:"-"`
}

// String returns the text of the duration.
func (d Duration) String() string {
	if d.Text != "" {
		if means, err := time.ParseDuration(d.Text); err == nil && means == d.Duration {
			return d.Text
		}
	}
	return d.Duration.String()
}

// UnmarshalJSON implements json.Unmarshaler.
func (d *Duration) UnmarshalJSON(data []byte) error {
	var plain metav1.Duration
	if err := plain.UnmarshalJSON(data); err != nil {
		return fmt.Errorf("%w: want hours, minutes or seconds, such as 720h", err)
	}
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return err
	}
	if text == plain.Duration.String() || len(text) > maxDurationText {
		text = ""
	}
	*d = Duration{Duration: plain.Duration, Text: text}
	return nil
}

// MarshalJSON implements json.Marshaler.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(d.String()) }

// ToUnstructured implements value.UnstructuredConverter, for field managers and patches.
func (d Duration) ToUnstructured() any { return d.String() }

// OpenAPISchemaType returns the type in the OpenAPI document.
func (Duration) OpenAPISchemaType() []string { return []string{"string"} }

// OpenAPISchemaFormat returns the format in the OpenAPI document.
func (Duration) OpenAPISchemaFormat() string { return "" }
