// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"fmt"
	"slices"
	"strings"
	"sync"
)

// maxUnknown bounds the objects of a kind with a warning about dropped fields; the log has the
// others.
const maxUnknown = 100

// unknownFields reports fields that the server dropped, once for each object.
type unknownFields struct {
	mu    sync.Mutex
	told  map[subject]bool
	count map[string]int
}

// tell returns a function for the server's warnings: unknown fields are reported, deprecated
// versions dropped, others logged.
func (u *unknownFields) tell(report *report) func(about subject, warnings []string) {
	return func(about subject, warnings []string) {
		var fields []string
		for _, warning := range warnings {
			if rest, ok := strings.CutPrefix(warning, "unknown field "); ok {
				fields = append(fields, strings.Trim(rest, `"`))
			} else if !strings.Contains(warning, "deprecated") {
				report.info(about, "the server warns: "+warning)
			}
		}
		if len(fields) == 0 {
			return
		}
		slices.Sort(fields)
		text := "the cluster does not know these fields, and has dropped them: " + listed(slices.Compact(fields))
		u.mu.Lock()
		defer u.mu.Unlock()
		if u.told == nil {
			u.told, u.count = map[subject]bool{}, map[string]int{}
		}
		if u.told[about] {
			return
		}
		u.count[about.resource]++
		if more := u.count[about.resource] - maxUnknown; more > 0 {
			report.info(about, text)
			if more == 1 {
				report.warn(subject{}, fmt.Sprintf("the cluster has dropped fields of more than %d %s: the log names the others", maxUnknown, about.resource))
			}
			return
		}
		u.told[about] = true
		report.warn(about, text)
	}
}
