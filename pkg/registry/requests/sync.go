// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package requests serves requests as resources that can only be created: syncrequests list a store,
// maintenancerequests maintain a repository, others delete volumes. A controller carries out the record of a
// request. If one waits already, it is the answer, without a write.
package requests

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/registry/recorded"
)

// SyncRecords is the client of the locations.
type SyncRecords interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (*enginev1alpha1.StorageLocation, error)
	Patch(ctx context.Context, name string, kind types.PatchType, patch []byte, options metav1.PatchOptions, subresources ...string) (*enginev1alpha1.StorageLocation, error)
}

// NewSync serves requests to the locations in the system namespace. The answer has the StorageLocation's
// generation to wait for. awaits reports whether a location's listing has not begun.
func NewSync(system string, records SyncRecords, awaits func(*enginev1alpha1.StorageLocation) bool, clock clock.PassiveClock) *recorded.AskREST[*v1alpha1.SyncRequest] {
	return &recorded.AskREST[*v1alpha1.SyncRequest]{
		Singular: "syncrequest", System: system, Records: "storage locations", NamedAfter: "StorageLocation", Clock: clock,
		Empty: &v1alpha1.SyncRequest{},
		Asked: func(given *v1alpha1.SyncRequest) *v1alpha1.SyncRequest {
			return &v1alpha1.SyncRequest{ObjectMeta: given.ObjectMeta}
		},
		Ask: func(ctx context.Context, request *v1alpha1.SyncRequest, ask enginev1alpha1.Ask, options *metav1.CreateOptions) (err error) {
			request.Status, err = writeSync(ctx, records, awaits, system, request.Name, ask, options)
			return err
		},
	}
}

// writeSync writes a request into the record, unless one waits.
func writeSync(ctx context.Context, records SyncRecords, awaits func(*enginev1alpha1.StorageLocation) bool, system, name string, ask enginev1alpha1.Ask, options *metav1.CreateOptions) (answer v1alpha1.SyncRequestStatus, err error) {
	record, err := records.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return answer, err
	}
	asked := record.Spec.SyncRequest
	if asked != nil && awaits(record) {
		answer.Message = fmt.Sprintf("nothing to do: %s asked at %s, and the listing is yet to begin; ", asked.Requester.Username, asked.Timestamp.UTC().Format(time.RFC3339))
	} else {
		if asked != nil && !asked.Timestamp.Before(&ask.Timestamp) { // a second is the least difference
			ask.Timestamp = metav1.NewTime(asked.Timestamp.Add(time.Second))
		}
		// Nothing else may be written, nor spelt otherwise (see the ValidatingAdmissionPolicy holdfast-apiserver).
		patch, err := json.Marshal([]map[string]any{
			{"op": "replace", "path": "/metadata/resourceVersion", "value": record.ResourceVersion}, // that version
			{"op": "add", "path": "/spec/syncRequest", "value": ask},                                // or replaces another
		})
		if err != nil {
			return answer, err
		}
		if record, err = records.Patch(ctx, name, types.JSONPatchType, patch, metav1.PatchOptions{DryRun: options.DryRun}); err != nil {
			return answer, err
		}
	}
	answer.Generation = record.Generation
	answer.Message += fmt.Sprintf("to wait for it: kubectl wait -n %s storagelocation/%s --for=condition=Synced", system, name)
	return answer, nil
}
