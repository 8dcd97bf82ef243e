// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go/middleware"
)

// sendChecksums sends CRC32s, which buckets with a default retention require, in headers, which older
// stores ignore.
func sendChecksums(stack *middleware.Stack) error {
	return stack.Initialize.Add(middleware.InitializeMiddlewareFunc("holdfast.io/checksum",
		func(ctx context.Context, in middleware.InitializeInput, next middleware.InitializeHandler) (middleware.InitializeOutput, middleware.Metadata, error) {
			if err := addChecksum(in.Parameters); err != nil {
				return middleware.InitializeOutput{}, middleware.Metadata{}, err
			}
			return next.HandleInitialize(ctx, in)
		}), middleware.Before)
}

func addChecksum(request any) (err error) {
	switch r := request.(type) {
	case *s3.PutObjectInput:
		r.ChecksumCRC32, err = checksum(r.Body)
	case *s3.UploadPartInput:
		r.ChecksumCRC32, err = checksum(r.Body)
	case *s3.CreateMultipartUploadInput:
		// Parts need an announcement.
		r.ChecksumAlgorithm = types.ChecksumAlgorithmCrc32
	}
	return err
}

func checksum(body io.Reader) (*string, error) {
	sum := crc32.NewIEEE()
	if body != nil {
		seeker, ok := body.(io.ReadSeeker)
		if !ok {
			return nil, fmt.Errorf("a body of type %T can't be read twice, for its checksum", body)
		}
		if _, err := io.Copy(sum, seeker); err != nil {
			return nil, err
		}
		if _, err := seeker.Seek(0, io.SeekStart); err != nil {
			return nil, err
		}
	}
	return aws.String(base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, sum.Sum32()))), nil
}
