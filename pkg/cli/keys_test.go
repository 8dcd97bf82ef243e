// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"
	"testing"
)

// TestKeysAreRotatedElsewhere: the plugin sends nothing, and names the command that rotates a key.
func TestKeysAreRotatedElsewhere(t *testing.T) {
	s := &server{}
	for says, args := range map[string][]string{
		"holdfast repo-key rotate --repo-name=shop --backup-storage-location=a.location --kubeconfig=": {"shop.a.location"},
		"--backup-storage-location=default --namespace=backups --kubeconfig=":                          {"shop.default", "--system-namespace=backups"},
		"want the name of a repository, NAMESPACE.LOCATION":                                            {"shop"},
	} {
		stdout, stderr, code := run(t, s, append([]string{"keys", "rotate"}, args...)...)
		if code != ExitUsage || !strings.Contains(stderr, says) || stdout != "" || len(s.requests) != 0 {
			t.Errorf("%v: exit code %d, %q, %s%s; want %q", args, code, s.requests, stdout, stderr, says)
		}
	}
}
