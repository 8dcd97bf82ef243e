// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"crypto/x509"
	"encoding/pem"
	"sync"
	"sync/atomic"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

var certificateExpiration = metrics.NewDesc("holdfast_apiserver_certificate_expiration_timestamp_seconds",
	"When the certificate expires that this replica of the API server serves with.", nil, nil, metrics.ALPHA, "")

type certificates interface {
	CurrentCertKeyContent() (certificate, key []byte)
}

// certificateCollector reads the serving certificate, which may change, when it is scraped.
type certificateCollector struct {
	metrics.BaseStableCollector
	serving atomic.Pointer[certificates]
}

var (
	servingCertificate certificateCollector
	registerOnce       sync.Once
)

func registerMetrics(serving certificates) {
	servingCertificate.serving.Store(&serving)
	registerOnce.Do(func() { legacyregistry.CustomMustRegister(&servingCertificate) })
}

// DescribeWithStability implements metrics.StableCollector.
func (*certificateCollector) DescribeWithStability(descs chan<- *metrics.Desc) {
	descs <- certificateExpiration
}

// CollectWithStability implements metrics.StableCollector.
func (c *certificateCollector) CollectWithStability(values chan<- metrics.Metric) {
	serving := c.serving.Load()
	if serving == nil {
		return
	}
	content, _ := (*serving).CurrentCertKeyContent()
	block, _ := pem.Decode(content) // the first one is the server's
	if block == nil {
		return
	}
	if certificate, err := x509.ParseCertificate(block.Bytes); err == nil {
		values <- metrics.NewLazyConstMetric(certificateExpiration, metrics.GaugeValue, float64(certificate.NotAfter.Unix()))
	}
}
