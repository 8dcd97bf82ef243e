// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"net"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// endpoints is a cluster in which two replicas, a and b, write the EndpointSlice.
type endpoints struct {
	kube *kubefake.Clientset
	a, b address
}

func newSlices() *endpoints {
	s := &endpoints{kube: kubefake.NewClientset()}
	// The fake knows of no conflicts.
	version := "1"
	s.kube.PrependReactor("update", "endpointslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		slice := action.(clienttesting.UpdateAction).GetObject().(*discoveryv1.EndpointSlice)
		if slice.ResourceVersion != version {
			return true, nil, apierrors.NewConflict(discoveryv1.Resource("endpointslices"), slice.Name, nil)
		}
		version += "1"
		slice.ResourceVersion = version
		return false, nil, nil
	})
	s.kube.PrependReactor("create", "endpointslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		action.(clienttesting.CreateAction).GetObject().(*discoveryv1.EndpointSlice).ResourceVersion = version
		return false, nil, nil
	})
	client := s.kube.DiscoveryV1().EndpointSlices("holdfast")
	s.a = address{slices: client, ip: net.ParseIP("10.0.0.1"), port: 8443}
	s.b = address{slices: client, ip: net.ParseIP("10.0.0.2"), port: 8443}
	return s
}

func (s *endpoints) want(t *testing.T, addresses ...string) {
	t.Helper()
	list, err := s.kube.DiscoveryV1().EndpointSlices("holdfast").List(context.Background(), metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + serviceName})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, slice := range list.Items {
		for _, endpoint := range slice.Endpoints {
			got = append(got, endpoint.Addresses...)
		}
	}
	if len(got) != len(addresses) || len(got) > 0 && got[0] != addresses[0] {
		t.Errorf("the Service has the addresses %v, want %v", got, addresses)
	}
}

func always() bool { return true }

func mustWrite(t *testing.T, a address) {
	t.Helper()
	if err := a.write(t.Context(), always); err != nil {
		t.Fatal(err)
	}
}

func TestOneAddress(t *testing.T) {
	s := newSlices()
	mustWrite(t, s.a)
	s.want(t, "10.0.0.1")
	mustWrite(t, s.b)
	s.want(t, "10.0.0.2")
	s.kube.ClearActions()
	mustWrite(t, s.b)
	if actions := s.kube.Actions(); len(actions) != 1 {
		t.Errorf("nothing has changed, and it made %v", actions)
	}
}

// TestPausedReplicaLeavesTheAddress pauses a replica before each of its steps, while
// another one takes over.
func TestPausedReplicaLeavesTheAddress(t *testing.T) {
	for name, exists := range map[string]bool{"the EndpointSlice exists": true, "the EndpointSlice is to be made": false} {
		t.Run(name, func(t *testing.T) {
			for _, pause := range []string{"before it reads", "before it asks for the Lease", "before it writes"} {
				s := newSlices()
				if exists {
					mustWrite(t, address{slices: s.a.slices, ip: net.ParseIP("10.0.0.3"), port: 8443})
				}
				held := true
				takeOver := func() { held = false; mustWrite(t, s.b) }
				if pause == "before it reads" {
					takeOver()
				}
				err := s.a.write(t.Context(), func() bool {
					if pause == "before it asks for the Lease" {
						takeOver()
					}
					holds := held
					if pause == "before it writes" {
						takeOver()
					}
					return holds
				})
				if late := pause == "before it writes"; (err != nil) != late {
					t.Errorf("%s: %v", pause, err)
				}
				s.want(t, "10.0.0.2")
			}
		})
	}
}

func TestAddressFamilies(t *testing.T) {
	s := newSlices()
	six := address{slices: s.a.slices, ip: net.ParseIP("fd00::1"), port: 8443}
	if slice := six.slice(); slice.AddressType != discoveryv1.AddressTypeIPv6 || slice.Name == s.a.slice().Name {
		t.Errorf("%s has addresses of type %s", slice.Name, slice.AddressType)
	}
}
