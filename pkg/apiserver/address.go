// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"fmt"
	"net"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	discoveryclient "k8s.io/client-go/kubernetes/typed/discovery/v1"
	"k8s.io/utils/ptr"
)

const (
	serviceName = "holdfast-apiserver" // also of its EndpointSlice, and of the Lease of the serving replica
	portName    = "https"              // of the Service

	advertiseInterval = 5 * time.Second        // of checks of the EndpointSlice
	advertiseRetry    = 500 * time.Millisecond // after a failure
)

type address struct {
	slices discoveryclient.EndpointSliceInterface
	ip     net.IP
	port   int
}

// advertise keeps this replica the Service's only address until ctx ends. It leaves the address to the next
// replica: there are never two, and a replica that does not serve tells clients to retry.
//
// A paused replica does not replace its successor's address. It reads the EndpointSlice, then checks that it still
// holds the Lease, and writes only the read version.
func (a address) advertise(ctx context.Context, holds func() bool) {
	for {
		pause := advertiseInterval
		if err := a.write(ctx, holds); err != nil && ctx.Err() == nil {
			utilruntime.HandleErrorWithContext(ctx, err, "Making this replica the address of the Service failed; it will be tried again")
			pause = advertiseRetry
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

func (a address) write(ctx context.Context, holds func() bool) error {
	want := a.slice()
	current, err := a.slices.Get(ctx, want.Name, metav1.GetOptions{})
	found := err == nil
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("reading EndpointSlice %s: %w", want.Name, err)
	}
	if !holds() {
		return nil
	}
	switch {
	case !found:
		_, err = a.slices.Create(ctx, want, metav1.CreateOptions{})
	case current.Labels[discoveryv1.LabelServiceName] == serviceName &&
		equality.Semantic.DeepEqual(current.Endpoints, want.Endpoints) && equality.Semantic.DeepEqual(current.Ports, want.Ports):
		return nil
	default:
		changed := current.DeepCopy()
		changed.Endpoints, changed.Ports = want.Endpoints, want.Ports
		metav1.SetMetaDataLabel(&changed.ObjectMeta, discoveryv1.LabelServiceName, serviceName)
		_, err = a.slices.Update(ctx, changed, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("writing EndpointSlice %s: %w", want.Name, err)
	}
	return nil
}

// slice returns the EndpointSlice with this replica as the only address. Its address type is immutable, so each
// type has its own slice.
func (a address) slice() *discoveryv1.EndpointSlice {
	name, family := serviceName, discoveryv1.AddressTypeIPv4
	if a.ip.To4() == nil {
		name, family = serviceName+"-ipv6", discoveryv1.AddressTypeIPv6
	}
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			discoveryv1.LabelServiceName: serviceName,
			discoveryv1.LabelManagedBy:   "holdfast-apiserver",
		}},
		AddressType: family,
		Endpoints: []discoveryv1.Endpoint{{
			Addresses:  []string{a.ip.String()},
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true), Terminating: ptr.To(false)},
		}},
		Ports: []discoveryv1.EndpointPort{{
			Name: ptr.To(portName), Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To(int32(a.port)),
		}},
	}
}
