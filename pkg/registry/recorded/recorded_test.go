// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package recorded

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// A caller whose record is refused is told why, with the code of the refusal. By an internal error
// nobody knows whether to try again.
func TestNotRecorded(t *testing.T) {
	record, backups := schema.GroupResource{Group: "engine.holdfast.io", Resource: "backupruns"}, schema.GroupResource{Group: "holdfast.io", Resource: "backups"}
	for name, c := range map[string]struct {
		err  error
		code int32
	}{
		"a quota":          {apierrors.NewForbidden(record, "shop.b", errors.New("exceeded quota")), 403},
		"it has no right":  {apierrors.NewForbidden(record, "", errors.New(`User "system:serviceaccount:holdfast:holdfast-apiserver" cannot create resource "backupruns" in API group "engine.holdfast.io" in the namespace "holdfast"`)), 500},
		"a policy":         {apierrors.NewInvalid(schema.GroupKind{Group: "engine.holdfast.io", Kind: "BackupRun"}, "shop.b", nil), 422},
		"it is too large":  {apierrors.NewRequestEntityTooLargeError("limit is 3145728"), 413},
		"too many ask":     {apierrors.NewTooManyRequests("later", 1), 429},
		"it is away":       {apierrors.NewServiceUnavailable("starting"), 503},
		"a webhook fails":  {apierrors.NewInternalError(errors.New("failed calling webhook")), 500},
		"no answer":        {errors.New("connection refused"), 500},
		"a wrapped answer": {fmt.Errorf("creating: %w", apierrors.NewForbidden(record, "shop.b", errors.New("exceeded quota"))), 403},
	} {
		var got apierrors.APIStatus
		err := NotRecorded(backups, "backup", "b", c.err)
		if !errors.As(err, &got) || got.Status().Code != c.code {
			t.Errorf("%s: %v, want the code %d", name, err, c.code)
			continue
		}
		if status := got.Status(); c.code == 403 && (!strings.Contains(status.Message, `backups.holdfast.io "b" can't be recorded: `) || !strings.Contains(status.Message, "exceeded quota") || status.Details.Name != "b") {
			t.Errorf("%s: %+v", name, status)
		}
	}
}
