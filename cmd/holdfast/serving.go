// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/sets"
	genericapifilters "k8s.io/apiserver/pkg/endpoints/filters"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/component-base/metrics/legacyregistry"
)

// servingOptions are about health and metrics of a role that is no API server.
type servingOptions struct {
	secure         *options.SecureServingOptionsWithLoopback
	authentication *options.DelegatingAuthenticationOptions
	authorization  *options.DelegatingAuthorizationOptions
	routes         []servedRoute
}

// servedRoute is a path whose handler authorises callers itself. It has its own name and certificate.
type servedRoute struct {
	Prefix           string
	Certificate, Key []byte
	Handler          http.Handler
}

// newServingOptions returns the options for a port; 0 serves nothing.
func newServingOptions(port int) *servingOptions {
	secure := options.NewSecureServingOptions()
	secure.BindPort = port
	secure.ServerCert.CertDirectory = ""
	secure.ServerCert.PairName = "holdfast"
	o := &servingOptions{
		secure:         secure.WithLoopback(),
		authentication: options.NewDelegatingAuthenticationOptions(),
		authorization:  options.NewDelegatingAuthorizationOptions(),
	}
	o.authentication.RemoteKubeConfigFileOptional = true
	o.authorization.RemoteKubeConfigFileOptional = true
	return o
}

// AddFlags adds the options' flags.
func (o *servingOptions) AddFlags(flags *pflag.FlagSet) {
	o.secure.AddFlags(flags)
	o.authentication.AddFlags(flags)
	o.authorization.AddFlags(flags)
}

// AddRoute has Start serve a route, too.
func (o *servingOptions) AddRoute(route servedRoute) { o.routes = append(o.routes, route) }

// Port returns the port, or 0.
func (o *servingOptions) Port() int { return o.secure.BindPort }

// Validate returns the options' errors.
func (o *servingOptions) Validate() []error {
	return append(append(o.secure.Validate(), o.authentication.Validate()...), o.authorization.Validate()...)
}

// Start serves /healthz, /livez, /readyz and /metrics until ctx ends, and then closes the channel. kubeconfig,
// empty for the pod's own account, checks callers unless a flag names another.
func (o *servingOptions) Start(ctx context.Context, kubeconfig string, ready ...healthz.HealthChecker) (<-chan struct{}, error) {
	if o.secure.BindPort == 0 {
		stopped := make(chan struct{})
		close(stopped)
		return stopped, nil
	}
	if o.authentication.RemoteKubeConfigFile == "" {
		o.authentication.RemoteKubeConfigFile = kubeconfig
	}
	if o.authorization.RemoteKubeConfigFile == "" {
		o.authorization.RemoteKubeConfigFile = kubeconfig
	}
	if err := o.secure.MaybeDefaultWithSelfSignedCerts("localhost", nil, []net.IP{net.IPv4(127, 0, 0, 1)}); err != nil {
		return nil, fmt.Errorf("making a certificate to serve metrics with: %w", err)
	}
	var serving *genericapiserver.SecureServingInfo
	var authentication genericapiserver.AuthenticationInfo
	var authorization genericapiserver.AuthorizationInfo
	if err := o.secure.SecureServingOptions.ApplyTo(&serving); err != nil {
		return nil, fmt.Errorf("serving metrics: %w", err)
	}
	if err := o.authentication.ApplyTo(&authentication, serving, nil); err != nil {
		return nil, fmt.Errorf("authenticating callers of /metrics: %w", err)
	}
	if err := o.authorization.ApplyTo(&authorization); err != nil {
		return nil, fmt.Errorf("authorizing callers of /metrics: %w", err)
	}

	for _, route := range o.routes {
		certificate, err := dynamiccertificates.NewStaticSNICertKeyContent(route.Prefix, route.Certificate, route.Key)
		if err != nil {
			return nil, fmt.Errorf("the certificate for %s: %w", route.Prefix, err)
		}
		serving.SNICerts = append(serving.SNICerts, certificate)
	}

	paths := mux.NewPathRecorderMux("holdfast")
	healthz.InstallHandler(paths, healthz.PingHealthz)
	healthz.InstallLivezHandler(paths, healthz.PingHealthz)
	healthz.InstallReadyzHandler(paths, append([]healthz.HealthChecker{healthz.PingHealthz}, ready...)...)
	paths.Handle("/metrics", legacyregistry.HandlerWithReset())

	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	codecs := serializer.NewCodecFactory(scheme)
	unauthorized := genericapifilters.Unauthorized(codecs)
	var handler http.Handler = paths
	handler = genericapifilters.WithAuthorization(handler, authorization.Authorizer, codecs)
	handler = genericapifilters.WithAuthentication(handler, authentication.Authenticator, unauthorized, authentication.APIAudiences, authentication.RequestHeaderConfig)
	handler = genericapifilters.WithRequestInfo(handler, &genericapirequest.RequestInfoFactory{APIPrefixes: sets.NewString(), GrouplessAPIPrefixes: sets.NewString()})

	for _, route := range o.routes {
		others := handler
		handler = http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
			if strings.HasPrefix(request.URL.Path, route.Prefix) {
				route.Handler.ServeHTTP(w, request)
				return
			}
			others.ServeHTTP(w, request)
		})
	}

	const shutdown = 5 * time.Second
	stopped, _, err := serving.Serve(handler, shutdown, ctx.Done())
	if err != nil {
		return nil, fmt.Errorf("serving metrics: %w", err)
	}
	return stopped, nil
}
