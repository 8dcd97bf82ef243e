// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package labtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

// S3 is a real S3 server.
type S3 struct {
	Endpoint, AccessKeyID, SecretAccessKey string
	// Buckets is the folder in which each bucket is a folder.
	Buckets string
}

// S3 starts the lab's S3 server, which stops with the lab.
func (l *Lab) S3(t testing.TB) S3 {
	t.Helper()
	command := exec.CommandContext(t.Context(), filepath.Join(l.bin, "lab"), "s3", "up", "--dir", l.Dir, "--source", filepath.Join(l.options.Root, "hack/lab"))
	output, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("lab s3 up: %v\n%s", err, output)
	}
	field := func(text []byte, pattern string) string {
		match := regexp.MustCompile(pattern).FindSubmatch(text)
		if match == nil {
			t.Fatalf("lab s3 up did not say what %s is:\n%s", pattern, output)
		}
		return string(match[1])
	}
	credentials, err := os.ReadFile(field(output, `credentials +(\S+)`))
	if err != nil {
		t.Fatal(err)
	}
	return S3{
		Endpoint:        field(output, `endpoint +(\S+)`),
		Buckets:         field(output, `buckets +(\S+)`),
		AccessKeyID:     field(credentials, `aws_access_key_id = (\S+)`),
		SecretAccessKey: field(credentials, `aws_secret_access_key = (\S+)`),
	}
}
