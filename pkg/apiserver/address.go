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
	// serviceName is the name of the Service, of its EndpointSlice, and of the Lease of
	// the replica that serves.
	serviceName = "holdfast-apiserver"
	// portName is that of the Service's port.
	portName = "https"

	// advertiseInterval is how often the EndpointSlice is looked at.
	advertiseInterval = 5 * time.Second
	// advertiseRetry is the pause after a failure.
	advertiseRetry = 500 * time.Millisecond
)

// address is where one replica is reached.
type address struct {
	slices discoveryclient.EndpointSliceInterface
	ip     net.IP
	port   int
}

// advertise keeps this replica the Service's only address until ctx ends. It leaves
// the address in place, for the next one to replace: there are never two, and a
// replica that does not serve says better than nobody that the client is to come again.
//
// A replica that was paused in the middle does not replace its successor's address: it
// reads the EndpointSlice, asks whether it holds the Lease still, which then nobody had
// taken before the reading, and writes only what has not changed since.
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

// slice is the EndpointSlice that makes this replica the only address of the Service.
// The type of its addresses can't be changed, so that each type has one of its own; all
// replicas are of one type.
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
