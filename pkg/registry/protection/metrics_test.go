// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package protection

import (
	"strings"
	"testing"

	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/testutil"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// hack/alerts reads from here what the API server serves.
const exposition = `# HELP holdfast_protections [ALPHA] Workloads and claims by their protection: Yes, Late, UNPROTECTED or Unknown.
# TYPE holdfast_protections gauge
holdfast_protections{kind="claim",protected="Late"} 1
holdfast_protections{kind="claim",protected="UNPROTECTED"} 3
holdfast_protections{kind="claim",protected="Unknown"} 0
holdfast_protections{kind="claim",protected="Yes"} 0
holdfast_protections{kind="workload",protected="Late"} 0
holdfast_protections{kind="workload",protected="UNPROTECTED"} 1
holdfast_protections{kind="workload",protected="Unknown"} 0
holdfast_protections{kind="workload",protected="Yes"} 0
# HELP holdfast_unprotected_claims [ALPHA] Claims that are Late or UNPROTECTED, although an annotation or a schedule asks for their backups, and older than their last backup may be.
# TYPE holdfast_unprotected_claims gauge
holdfast_unprotected_claims 2
`

// A claim without a good backup counts once one is expected.
func TestUnprotectedClaims(t *testing.T) {
	w := newWorld(t, storetest.Memory(t))
	w.namespace("shop", "")
	old := &thing{kind: "PersistentVolumeClaim", namespace: "shop", name: "old", uid: "old", created: -90, rpo: "24h"}
	for _, o := range []*thing{
		old,
		{kind: "PersistentVolumeClaim", namespace: "shop", name: "never", uid: "never", created: -90, rpo: "24h"},
		{kind: "PersistentVolumeClaim", namespace: "shop", name: "young", uid: "young", created: -10, rpo: "24h"},
		{kind: "PersistentVolumeClaim", namespace: "shop", name: "scratch", uid: "scratch", created: -90},
		{kind: "Deployment", namespace: "shop", name: "web", uid: "web", created: -90, rpo: "24h"},
	} {
		w.lives(o)
	}
	w.put(&made{storeName: "all", namespace: system, start: -50, phase: v1alpha1.BackupPhaseCompleted, own: true, volumes: []catalog.Volume{volumeOf(old, v1alpha1.VolumeBackupCompleted, -50)}},
		[]*manifest.Item{itemOf(old, nil)}, "")
	w.settle(10)
	if err := testutil.GatherAndCompare(legacyregistry.DefaultGatherer, strings.NewReader(exposition), "holdfast_protections", "holdfast_unprotected_claims"); err != nil {
		t.Error(err)
	}
}
