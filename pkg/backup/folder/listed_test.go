// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package folder_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// TestNeeds: a backup that is stored, or runs, needs its snapshots, and so does one of which
// that is not certain.
func TestNeeds(t *testing.T) {
	const unknown = "unknown"
	end := func(s *scene, phase string) {
		data := bytes.Replace(s.metadata(), []byte(`"phase":"Completed"`), []byte(`"phase":"`+phase+`"`), 1)
		s.put("metadata", string(data))
	}
	fails := func(what string, err error) func(*scene) {
		return func(s *scene) {
			s.own("another")
			s.fail(what, storetest.Fault{Err: err})
		}
	}
	for name, c := range map[string]struct {
		prepare func(s *scene)
		want    string
	}{
		"nothing":                         {func(*scene) {}, "false"},
		"it runs":                         {func(s *scene) { s.own(mine); s.put("tarball", "a part") }, "true"},
		"it is stored":                    {func(s *scene) { s.store(mine) }, "true"},
		"it is stored, and lost its copy": {func(s *scene) { s.store(mine); s.remove("copy") }, "true"},
		"it is stored, and lost its owner": {func(s *scene) {
			s.store(mine)
			s.remove("owner")
		}, "true"},
		"it lies in another's folder": {func(s *scene) { s.store(mine); s.own("another") }, "true"},
		"it has failed":               {func(s *scene) { s.store(mine); end(s, "Failed") }, "false"},
		"it was cancelled": {func(s *scene) {
			s.store(mine)
			s.put("metadata", strings.Replace(string(s.metadata()), `"annotations":{`, `"annotations":{"`+format.AnnotationPhase+`":"Cancelled",`, 1))
			end(s, "Failed")
		}, "false"},
		"it is being deleted":             {func(s *scene) { s.store(mine); s.remove("metadata") }, "true"},
		"another one":                     {func(s *scene) { s.store("another") }, "false"},
		"another one runs":                {func(s *scene) { s.own("another"); s.put("copy", "{") }, "false"},
		"beneath Velero's":                {func(s *scene) { s.store(mine); s.replace() }, "true"},
		"beneath Velero's, without owner": {func(s *scene) { s.store(mine); s.replace(); s.remove("owner") }, "true"},
		"a bad copy beneath Velero's":     {func(s *scene) { s.replace(); s.put("copy", "{") }, unknown},
		"Velero's":                        {func(s *scene) { s.replace() }, "false"},
		"unreadable metadata":             {func(s *scene) { s.own("another"); s.put("metadata", "<html>") }, unknown},
		"metadata that is not finished":   {func(s *scene) { s.store(mine); end(s, "InProgress") }, unknown},
		"an unreadable owner":             {func(s *scene) { s.put("owner", "<html>") }, unknown},
		"metadata that is denied":         {fails("metadata", store.ErrDenied), unknown},
		"metadata that is away":           {fails("metadata", store.ErrUnavailable), unknown},
		"an owner that is denied":         {fails("owner", store.ErrDenied), unknown},
		"an owner that is away":           {fails("owner", store.ErrUnavailable), unknown},
		"a copy that is denied":           {fails("copy", store.ErrDenied), unknown},
		"a copy that is away":             {fails("copy", store.ErrUnavailable), unknown},
		"metadata of which half is fetched": {func(s *scene) {
			s.store(mine)
			s.fail("metadata", storetest.Fault{Err: store.ErrUnavailable, Truncate: true, After: 20})
		}, unknown},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, storetest.Memory(t))
			c.prepare(s)
			needs, err := s.deletion.Needs(t.Context())
			got := fmt.Sprint(needs)
			if err != nil {
				if got = unknown; !needs {
					t.Errorf("with the error %v it says that they are not needed", err)
				}
			}
			if got != c.want {
				t.Errorf("it says %s (%v), want %s", got, err, c.want)
			}
		})
	}
}

func (s *scene) metadata() []byte {
	s.Helper()
	var all bytes.Buffer
	content, err := s.Get(s.Context(), format.MetadataKey("a"))
	must(s, err)
	defer content.Close()
	_, err = all.ReadFrom(content)
	must(s, err)
	return all.Bytes()
}
