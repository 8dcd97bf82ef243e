// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package realworld compares what the most used charts and operators create before a loss and after
// the restore, field by field. Each difference is explained in a golden file. See README.md.
package realworld

import (
	"flag"
	"os"
	"testing"

	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

var (
	update    = flag.Bool("update", false, "write the golden files and the table in docs/ anew")
	withNewer = flag.String("newer", "", "restore into a cluster of this version of Kubernetes, too, as 1.37.2")
	operators = flag.String("operators", "", "the operators to compare, separated by commas; all if empty")
)

const root = "../.."

var lab *labtest.Lab

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(labtest.Main(m, labtest.Options{Root: root, APIServerFlags: "--backupstore-poll-interval=1s"}, func(l *labtest.Lab) { lab = l }))
}
