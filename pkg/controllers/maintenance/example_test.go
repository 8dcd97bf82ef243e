// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"os"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// The example that the documentation shows is taken as it is, and has each field once.
func TestExample(t *testing.T) {
	text, err := os.ReadFile("../../../artifacts/examples/repo-maintenance.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var example corev1.ConfigMap
	if err := yaml.UnmarshalStrict(text, &example); err != nil {
		t.Fatal(err)
	}
	read, err := settings{}.update(example.Data)
	if err != nil {
		t.Fatal(err)
	}
	if other := read.of(repositoryOf("other")); other.parsed.MemoryLimit.String() != "1Gi" || *other.Keep != 3 || len(other.terms) != 2 {
		t.Errorf("for most it is %+v", other)
	}
	if shop := read.of(repositoryOf("shop")); shop.parsed.MemoryLimit.String() != "4Gi" || *shop.Keep != 1 || len(shop.terms) != 2 {
		t.Errorf("for shop it is %+v", shop)
	}
	for _, kind := range []reflect.Type{reflect.TypeFor[setting](), reflect.TypeFor[podResources]()} {
		for i := range kind.NumField() {
			if name, _, _ := strings.Cut(kind.Field(i).Tag.Get("json"), ","); name != "" && !strings.Contains(example.Data[globalKey], `"`+name+`"`) {
				t.Errorf("it does not show %s", name)
			}
		}
	}
}
