// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package labtest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
)

// Versions is a bucket with object lock, as a client with the server's keys sees it.
type Versions struct {
	client *s3.Client
	server S3
	bucket string
}

// Version is a version of an object.
type Version struct{ Key, ID string }

// LockedBucket makes a bucket with object lock.
func (s S3) LockedBucket(t testing.TB, bucket string) *Versions {
	t.Helper()
	v := &Versions{server: s, bucket: bucket, client: s3.New(s3.Options{
		Region: "us-east-1", BaseEndpoint: aws.String(s.Endpoint), UsePathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider(s.AccessKeyID, s.SecretAccessKey, ""),
	})}
	if _, err := v.client.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: aws.String(bucket), ObjectLockEnabledForBucket: aws.Bool(true)}); err != nil {
		t.Fatal(err)
	}
	return v
}

// All reads all versions that there are, and returns which one each key has now.
func (v *Versions) All(t testing.TB) (contents map[Version]string, current map[string]Version) {
	t.Helper()
	contents, current = map[Version]string{}, map[string]Version{}
	pages := s3.NewListObjectVersionsPaginator(v.client, &s3.ListObjectVersionsInput{Bucket: aws.String(v.bucket)})
	for pages.HasMorePages() {
		page, err := pages.NextPage(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, listed := range page.Versions {
			one := Version{aws.ToString(listed.Key), aws.ToString(listed.VersionId)}
			found, err := v.client.GetObject(t.Context(), &s3.GetObjectInput{Bucket: aws.String(v.bucket), Key: listed.Key, VersionId: listed.VersionId})
			if missing := (smithy.APIError)(nil); errors.As(err, &missing) && missing.ErrorCode() == "NoSuchVersion" {
				continue // removed meanwhile
			}
			if err != nil {
				t.Fatalf("reading %v: %v", one, err)
			}
			content, err := io.ReadAll(found.Body)
			if err := errors.Join(err, found.Body.Close()); err != nil {
				t.Fatal(err)
			}
			contents[one] = string(content)
			if aws.ToBool(listed.IsLatest) {
				current[one.Key] = one
			}
		}
	}
	return contents, current
}

// Current returns the version that each key has now.
func (v *Versions) Current(t testing.TB) (current []Version) {
	t.Helper()
	current, _ = v.latest(t)
	return current
}

// latest returns the latest version of each key, and the marks of the keys that are deleted.
func (v *Versions) latest(t testing.TB) (versions, marks []Version) {
	t.Helper()
	pages := s3.NewListObjectVersionsPaginator(v.client, &s3.ListObjectVersionsInput{Bucket: aws.String(v.bucket)})
	for pages.HasMorePages() {
		page, err := pages.NextPage(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, listed := range page.Versions {
			if aws.ToBool(listed.IsLatest) {
				versions = append(versions, Version{aws.ToString(listed.Key), aws.ToString(listed.VersionId)})
			}
		}
		for _, listed := range page.DeleteMarkers {
			if aws.ToBool(listed.IsLatest) {
				marks = append(marks, Version{aws.ToString(listed.Key), aws.ToString(listed.VersionId)})
			}
		}
	}
	return versions, marks
}

// LockedUntil returns when the lock of a version ends; zero without one.
func (v *Versions) LockedUntil(t testing.TB, of Version) time.Time {
	t.Helper()
	found, err := v.client.GetObjectRetention(t.Context(), &s3.GetObjectRetentionInput{Bucket: aws.String(v.bucket), Key: aws.String(of.Key), VersionId: aws.String(of.ID)})
	if none := (smithy.APIError)(nil); errors.As(err, &none) && none.ErrorCode() == "NoSuchObjectLockConfiguration" {
		return time.Time{}
	}
	if err != nil {
		t.Fatalf("the lock of %v: %v", of, err)
	}
	return aws.ToTime(found.Retention.RetainUntilDate)
}

// Hide deletes an object: its versions stay.
func (v *Versions) Hide(t testing.TB, key string) {
	t.Helper()
	if _, err := v.client.DeleteObject(t.Context(), &s3.DeleteObjectInput{Bucket: aws.String(v.bucket), Key: aws.String(key)}); err != nil {
		t.Fatalf("deleting %s: %v", key, err)
	}
}

// Put writes an object: the versions before it stay.
func (v *Versions) Put(t testing.TB, key, content string) {
	t.Helper()
	if _, err := v.client.PutObject(t.Context(), &s3.PutObjectInput{Bucket: aws.String(v.bucket), Key: aws.String(key), Body: strings.NewReader(content)}); err != nil {
		t.Fatalf("writing %s: %v", key, err)
	}
}

// TryRemove tries to remove a version for good.
func (v *Versions) TryRemove(t testing.TB, of Version) error {
	t.Helper()
	_, err := v.client.DeleteObject(t.Context(), &s3.DeleteObjectInput{Bucket: aws.String(v.bucket), Key: aws.String(of.Key), VersionId: aws.String(of.ID)})
	return err
}

// Bucket returns the bucket's name.
func (v *Versions) Bucket() string { return v.bucket }

// CorrectTimes sets the times of versions to the times of their writing, as AWS lists them.
// versitygw copies the file of a version that is replaced, or that follows a removed one. A file that
// becomes the mark of a deletion keeps its time. The ids begin with the right time.
func (v *Versions) CorrectTimes(t testing.TB) {
	t.Helper()
	correct := func(path, id string) error {
		written, ok := timeOf(id)
		if !ok {
			return fmt.Errorf("%s: %q is no id of a version", path, id)
		}
		return os.Chtimes(path, written, written)
	}
	err := filepath.WalkDir(filepath.Join(filepath.Dir(v.server.Buckets), "versions", v.bucket), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		return correct(path, entry.Name())
	})
	versions, marks := v.latest(t)
	for _, current := range append(versions, marks...) {
		err = errors.Join(err, correct(filepath.Join(v.server.Buckets, v.bucket, current.Key), current.ID))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// timeOf returns the time in a ULID: 48 bits of milliseconds, in base 32
// (https://github.com/ulid/spec).
func timeOf(id string) (time.Time, bool) {
	const digits, length = "0123456789ABCDEFGHJKMNPQRSTVWXYZ", 26
	if len(id) != length {
		return time.Time{}, false
	}
	var milliseconds int64
	for _, digit := range id[:10] {
		value := strings.IndexRune(digits, digit)
		if value < 0 {
			return time.Time{}, false
		}
		milliseconds = milliseconds<<5 | int64(value)
	}
	return time.UnixMilli(milliseconds), true
}
