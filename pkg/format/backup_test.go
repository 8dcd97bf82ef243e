// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package format

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

var update = flag.Bool("update", false, "rewrite the golden files in testdata")

func at(clock string) *metav1.Time {
	instant, err := time.Parse(time.TimeOnly, clock)
	if err != nil {
		panic(err)
	}
	stamp := metav1.NewTime(instant.AddDate(2026, 10, 19))
	return &stamp
}

// key is the same in each run, so that what it signs can be golden.
var key = signingKey("the cluster's key")

func signingKey(seed string) *SigningKey {
	hash := sha256.Sum256([]byte(seed))
	key, err := ParseSigningKey(hash[:])
	if err != nil {
		panic(err)
	}
	return key
}

var cluster = Cluster{SystemNamespace: "holdfast", UID: "cluster-uid", GitVersion: "v1.34.4", Major: "1", Minor: "34", Key: key}

var now = at("12:00:00").Time

func endedBackup() *v1alpha1.Backup {
	backup := &v1alpha1.Backup{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:         "shop",
			Name:              "daily",
			UID:               "2c0f6b1e-7a53-4c3f-8f0a-3d7a54a9e001",
			ResourceVersion:   "77",
			CreationTimestamp: *at("10:00:00"),
			Labels:            map[string]string{"app": "shop"},
			Annotations: map[string]string{
				"note":                         "kept",
				"holdfast.io/origin-namespace": "forged", // it is overwritten
				"holdfast.io/cancelled-by":     "forged", // and these would not be
				"holdfast.io/anything":         "forged",
			},
		},
		Spec: v1alpha1.BackupSpec{
			IncludedNamespaces:       []string{"shop"},
			ExcludedResources:        []string{"events"},
			LabelSelector:            &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "web"}},
			DefaultVolumesToFsBackup: new(true),
			TTL:                      v1alpha1.Duration{Duration: 720 * time.Hour},
			StorageLocation:          "default",
		},
		Status: v1alpha1.BackupStatus{
			Phase:               v1alpha1.BackupPhasePartiallyFailed,
			FormatVersion:       FormatVersion,
			QueuedTimestamp:     at("10:00:01"),
			StartTimestamp:      at("10:00:02"),
			CompletionTimestamp: at("10:00:59"),
			Expiration:          &metav1.Time{Time: at("10:00:02").AddDate(0, 0, 30)},
			Progress:            &v1alpha1.BackupProgress{TotalItems: 42, ItemsBackedUp: 41},
			Warnings:            2,
			Errors:              1,
			FailureReason:       "1 object could not be read",
			Requester:           "alice@example.com",
			Origin:              &v1alpha1.BackupOrigin{Trust: v1alpha1.BackupTrustOwn, NamespaceUID: "shop-uid"},
		},
	}
	backup.Status.Conditions = EndConditions(&backup.Status)
	return backup
}

// golden compares with a file of testdata; -update rewrites it.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

func indented(t *testing.T, compact []byte) []byte {
	t.Helper()
	var readable bytes.Buffer
	if err := json.Indent(&readable, compact, "", "  "); err != nil {
		t.Fatal(err)
	}
	return append(bytes.TrimSpace(readable.Bytes()), '\n')
}

func TestEncodeBackupGolden(t *testing.T) {
	data, err := EncodeBackup(endedBackup(), contents, cluster)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "velero-backup.json", indented(t, data))
}

// Readers believe what is below the prefix, so no user may write there.
func TestUsersWriteNothingBelowThePrefix(t *testing.T) {
	for _, ours := range []Cluster{cluster, {SystemNamespace: "holdfast"}} {
		backup := endedBackup()
		backup.Status.Requester, backup.Status.QueuedTimestamp, backup.Status.Origin = "", nil, nil
		for _, key := range []string{
			AnnotationOriginNamespace, AnnotationOriginNamespaceUID, AnnotationOriginName, AnnotationClusterUID, AnnotationRequester,
			AnnotationQueuedAt, AnnotationPhase, AnnotationContents, AnnotationPublicKey, AnnotationSignature, AnnotationSecretsLeftOut, AnnotationMessage, AnnotationScheduleUID, AnnotationEncryption, "holdfast.io/", "holdfast.io/of-a-later-release",
		} {
			backup.Annotations[key] = "forged"
		}
		data, err := EncodeBackup(backup, nil, ours)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(data), "forged") || !strings.Contains(string(data), `"note":"kept"`) || strings.Contains(string(data), `":""`) {
			t.Errorf("stored: %s", data)
		}
	}
}

func TestBackupRoundTrip(t *testing.T) {
	tenant := endedBackup()
	system := endedBackup()
	system.Namespace = "holdfast"
	failed := endedBackup()
	failed.Status.Phase = v1alpha1.BackupPhaseFailed
	failed.Status.Conditions = EndConditions(&failed.Status)
	completed := endedBackup()
	completed.Status.Phase, completed.Status.FailureReason = v1alpha1.BackupPhaseCompleted, ""
	completed.Status.Message = "2 warnings: one; another"
	completed.Status.Conditions = EndConditions(&completed.Status)
	partial := endedBackup()
	partial.Status.FailureReason, partial.Status.Message = "", "1 error, 2 warnings: pods shop/a: read it: no rights"
	partial.Status.Conditions = EndConditions(&partial.Status)
	if got := partial.Status.Conditions[1].Message; got != partial.Status.Message {
		t.Errorf("the condition Succeeded says %q", got)
	}
	scheduled := endedBackup()
	scheduled.Status.Origin.ScheduleUID = "schedule-uid"
	scheduled.Status.HookStatus = &v1alpha1.HookStatus{HooksAttempted: 2, HooksFailed: 1}
	lacking := completed.DeepCopy()
	lacking.Status.Conditions = append(lacking.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionSecretsLeftOut, Status: metav1.ConditionTrue, Reason: "OwnNamespaces", Message: "2 Secrets", LastTransitionTime: *lacking.Status.CompletionTimestamp,
	})
	encrypted := endedBackup()
	encrypted.Status.Encryption = &v1alpha1.BackupEncryption{ClusterKey: "age1cluster", RecoveryKeys: []string{"age1b", "age1a"}}
	for name, backup := range map[string]*v1alpha1.Backup{"encrypted": encrypted, "tenant": tenant, "system": system, "failed": failed, "completed": completed, "scheduled": scheduled, "lacking": lacking, "partial": partial} {
		before := backup.DeepCopy()
		data, err := EncodeBackup(backup, nil, cluster)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, backup); diff != "" {
			t.Errorf("%s: encoding changed the backup:\n%s", name, diff)
		}
		got, err := DecodeBackup(data, Place{
			StoreName:       StoreName(backup.Namespace, backup.Name, "holdfast"),
			Location:        "default",
			SystemNamespace: "holdfast",
			Now:             now,
		})
		if err != nil {
			t.Fatal(err)
		}
		want := backup.DeepCopy()
		want.Namespace, want.Name = "holdfast", StoreName(backup.Namespace, backup.Name, "holdfast")
		want.ResourceVersion = ""
		want.Status.Requester = ""
		want.Status.Origin = &v1alpha1.BackupOrigin{
			ClusterUID: "cluster-uid", PublicKey: key.PublicKey(),
			Namespace: backup.Namespace, NamespaceUID: "shop-uid", Name: "daily", ClaimedRequester: "alice@example.com",
			ScheduleUID: backup.Status.Origin.ScheduleUID,
		}
		want.Annotations = map[string]string{
			"note":               "kept",
			annotationGitVersion: "v1.34.4", annotationMajorVersion: "1", annotationMinorVersion: "34",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// Velero accepts only what has these fields.
func TestEncodeBackupHasWhatVeleroNeeds(t *testing.T) {
	data, err := EncodeBackup(endedBackup(), nil, cluster)
	if err != nil {
		t.Fatal(err)
	}
	var stored struct {
		APIVersion, Kind string
		Metadata         struct{ Name, Namespace string }
		Spec             struct{ CSISnapshotTimeout string }
		Status           struct {
			Version                                                               int
			FormatVersion, Phase, Expiration, StartTimestamp, CompletionTimestamp string
		}
	}
	if err := json.Unmarshal(data, &stored); err != nil {
		t.Fatal(err)
	}
	status := stored.Status
	if stored.APIVersion != "velero.io/v1" || stored.Kind != "Backup" || stored.Metadata.Name != "shop.daily" || stored.Metadata.Namespace == "" ||
		stored.Spec.CSISnapshotTimeout != "10m0s" || status.Version != 1 || status.FormatVersion != "1.2.0" || status.Phase != "PartiallyFailed" ||
		status.Expiration == "" || status.StartTimestamp == "" || status.CompletionTimestamp == "" {
		t.Errorf("stored %+v", stored)
	}
}

// TestTimeoutsComeBack: a backup's own limits of its snapshots are stored, and defaults are not shown.
func TestTimeoutsComeBack(t *testing.T) {
	for set, want := range map[time.Duration]time.Duration{0: 0, 10 * time.Minute: 0, time.Hour: time.Hour} {
		backup := endedBackup()
		backup.Spec.CSISnapshotTimeout = v1alpha1.Duration{Duration: set}
		data, err := EncodeBackup(backup, nil, cluster)
		if err != nil {
			t.Fatal(err)
		}
		got, err := DecodeBackup(data, Place{StoreName: "shop.daily", Location: "default", SystemNamespace: "holdfast", Now: now})
		if err != nil || got.Spec.CSISnapshotTimeout.Duration != want {
			t.Errorf("%s comes back as %+v, %v", set, got, err)
		}
	}
}

func TestEndConditions(t *testing.T) {
	for phase, succeeded := range map[v1alpha1.BackupPhase]metav1.ConditionStatus{
		v1alpha1.BackupPhaseCompleted: metav1.ConditionTrue, v1alpha1.BackupPhaseFailed: metav1.ConditionFalse,
	} {
		want := metav1.Condition{Type: v1alpha1.ConditionComplete, Status: metav1.ConditionTrue, Reason: string(phase), Message: "why", LastTransitionTime: *at("10:00:59")}
		other := want
		other.Type, other.Status = v1alpha1.ConditionSucceeded, succeeded
		got := EndConditions(&v1alpha1.BackupStatus{Phase: phase, FailureReason: "why", StartTimestamp: at("10:00:02"), CompletionTimestamp: at("10:00:59")})
		if diff := cmp.Diff([]metav1.Condition{want, other}, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", phase, diff)
		}
	}
}

func TestEncodeBackupRefuses(t *testing.T) {
	for field, spoil := range map[string]func(*v1alpha1.Backup){
		"status.phase":               func(b *v1alpha1.Backup) { b.Status.Phase = v1alpha1.BackupPhaseInProgress },
		"metadata.uid":               func(b *v1alpha1.Backup) { b.UID = "" },
		"metadata.creationTimestamp": func(b *v1alpha1.Backup) { b.CreationTimestamp = metav1.Time{} },
		"status.startTimestamp":      func(b *v1alpha1.Backup) { b.Status.StartTimestamp = nil },
		"status.completionTimestamp": func(b *v1alpha1.Backup) { b.Status.CompletionTimestamp = nil },
		"can't be the name":          func(b *v1alpha1.Backup) { b.Name = "../other" },
	} {
		backup := endedBackup()
		spoil(backup)
		if _, err := EncodeBackup(backup, nil, cluster); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func TestDecodeVeleroBackup(t *testing.T) {
	data, err := os.ReadFile("testdata/written-by-velero.json")
	if err != nil {
		t.Fatal(err)
	}
	backup, err := DecodeBackup(data, Place{StoreName: "nginx-2026", Location: "s3-eu", SystemNamespace: "holdfast", Now: now})
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(backup)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "written-by-velero.decoded.json", indented(t, got))
}

// What was stored when the format was 1.1.0 is read, and its signature holds, as of what is stored now.
func TestDecodeOfTheFormatBefore(t *testing.T) {
	decode := func(name string) *v1alpha1.Backup {
		data, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		return decodeAt(t, data)
	}
	before, current := decode("velero-backup-1.1.0.json"), decode("velero-backup.json")
	if before.Status.FormatVersion != "1.1.0" {
		t.Errorf("decoded %q", before.Status.FormatVersion)
	}
	before.Status.FormatVersion = FormatVersion
	if diff := cmp.Diff(current, before); diff != "" {
		t.Errorf("1.1.0 differs (-current +before):\n%s", diff)
	}
}

// change decodes the golden metadata after one change.
func decodeChanged(t *testing.T, place Place, change func(map[string]any)) (*v1alpha1.Backup, error) {
	t.Helper()
	data, err := os.ReadFile("testdata/velero-backup.json")
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(data, &fields); err != nil {
		t.Fatal(err)
	}
	change(fields)
	if data, err = json.Marshal(fields); err != nil {
		t.Fatal(err)
	}
	return DecodeBackup(data, place)
}

// Pitfall 9: metadata with the phase of a backup that waits or runs is no backup, let
// alone work.
func TestDecodePhases(t *testing.T) {
	place := Place{StoreName: "shop.daily", Location: "default", SystemNamespace: "holdfast", Now: now}
	later := place
	later.Now = now.AddDate(1, 0, 0)
	for _, test := range []struct {
		phase string
		place Place
		want  v1alpha1.BackupPhase
	}{
		{"Completed", place, "Completed"},
		{"PartiallyFailed", place, "PartiallyFailed"},
		{"Failed", place, "Failed"},
		{"Failed", later, "Failed"},
		{"", place, ""},
		{"New", place, ""},
		{"Queued", place, ""},
		{"ReadyToStart", place, ""},
		{"InProgress", place, ""},
		{"Finalizing", place, ""},
		{"FinalizingPartiallyFailed", place, ""},
		{"WaitingForPluginOperations", place, ""},
		{"WaitingForPluginOperationsPartiallyFailed", place, ""},
		{"Finalizing", later, "PartiallyFailed"},
		{"", later, "PartiallyFailed"},
	} {
		backup, err := decodeChanged(t, test.place, func(fields map[string]any) {
			fields["status"].(map[string]any)["phase"] = test.phase
		})
		switch {
		case test.want == "":
			if !errors.Is(err, ErrUnfinished) {
				t.Errorf("%s: got %v, want %v", test.phase, err, ErrUnfinished)
			}
		case err != nil || backup.Status.Phase != test.want || string(test.want) != backup.Status.Conditions[0].Reason:
			t.Errorf("%s: got %+v, %v", test.phase, backup, err)
		}
	}
}

// What never expires may be finished yet.
func TestUnfinishedWithoutExpiration(t *testing.T) {
	place := Place{StoreName: "shop.daily", Location: "default", SystemNamespace: "holdfast", Now: now.AddDate(9, 0, 0)}
	backup, err := decodeChanged(t, place, func(fields map[string]any) {
		delete(fields["status"].(map[string]any), "expiration")
		fields["status"].(map[string]any)["phase"] = "InProgress"
	})
	if !errors.Is(err, ErrUnfinished) {
		t.Errorf("got %+v, %v", backup, err)
	}
}

func TestDecodeRefuses(t *testing.T) {
	place := Place{StoreName: "shop.daily", Location: "default", SystemNamespace: "holdfast", Now: now}
	for want, change := range map[string]func(map[string]any){
		"kind":                               func(f map[string]any) { f["kind"] = "Restore" },
		"velero.io/v1":                       func(f map[string]any) { f["apiVersion"] = "velero.io/v2" },
		"named \"other\"":                    func(f map[string]any) { f["metadata"].(map[string]any)["name"] = "other" },
		"phase \"Odd\"":                      func(f map[string]any) { f["status"].(map[string]any)["phase"] = "Odd" },
		"not the JSON":                       func(f map[string]any) { f["spec"] = []string{"list"} },
		"more than":                          func(f map[string]any) { f["padding"] = strings.Repeat("x", MaxMetadataBytes) },
		"holdfast.io/encryption is not JSON": encryptedBy("age1"),
		"holdfast.io/encryption: \"\" is not a public key of age": encryptedBy("{}"),
		"holdfast.io/encryption: \"x\\ny\" is not a public key":   encryptedBy(`{"clusterKey":"age1a","recoveryKeys":["x\ny"]}`),
		"holdfast.io/encryption has 8208 bytes, more than 8192":   encryptedBy(`{"clusterKey":"age1` + strings.Repeat("a", 8187) + `"}`),
	} {
		if _, err := decodeChanged(t, place, change); err == nil || !strings.Contains(err.Error(), want) || errors.Is(err, ErrUnfinished) {
			t.Errorf("%s: %v", want, err)
		}
	}
	// The limit itself is none too much.
	whole := signedMetadata(t)
	whole = append(whole, bytes.Repeat([]byte(" "), MaxMetadataBytes-len(whole))...)
	if _, err := DecodeBackup(whole, place); err != nil {
		t.Errorf("%d bytes: %v", len(whole), err)
	}
	if _, err := DecodeBackup(append(whole, ' '), place); err == nil {
		t.Errorf("%d bytes were read", len(whole)+1)
	}
	for _, data := range []string{"", "null", "[]", "{", `"x"`, "{}", "{}{}", "kind: Backup\napiVersion: velero.io/v1\n"} {
		if backup, err := DecodeBackup([]byte(data), place); err == nil {
			t.Errorf("%q was read as %+v", data, backup)
		}
	}
}

func encryptedBy(annotation string) func(map[string]any) {
	return func(f map[string]any) {
		f["metadata"].(map[string]any)["annotations"].(map[string]any)[AnnotationEncryption] = annotation
	}
}

func TestDecodeWithoutUID(t *testing.T) {
	place := Place{StoreName: "shop.daily", Location: "default", SystemNamespace: "holdfast", Now: now}
	forget := func(fields map[string]any) {
		delete(fields["metadata"].(map[string]any), "uid")
		delete(fields["metadata"].(map[string]any), "creationTimestamp")
	}
	first, err := decodeChanged(t, place, forget)
	if err != nil {
		t.Fatal(err)
	}
	again, err := decodeChanged(t, place, forget)
	if err != nil {
		t.Fatal(err)
	}
	place.Location = "other"
	elsewhere, err := decodeChanged(t, place, forget)
	if err != nil {
		t.Fatal(err)
	}
	if first.UID == "" || first.UID != again.UID || first.UID == elsewhere.UID {
		t.Errorf("derived uids %q, %q and elsewhere %q", first.UID, again.UID, elsewhere.UID)
	}
	if !first.CreationTimestamp.Equal(at("10:00:02")) {
		t.Errorf("creation %v, want the start", first.CreationTimestamp)
	}
}

// Derived uids are in people's hands: they must not change between releases.
func TestDerivedUIDIsFixed(t *testing.T) {
	if got := DerivedUID("backup", "default", "daily"); got != "e5f0209c-dba4-53e2-8be0-40950b4eb3d9" {
		t.Errorf("got %s", got)
	}
	if DerivedUID("backup", "a", "b/c") == DerivedUID("backup", "a/b", "c") {
		t.Error("two identities share a uid")
	}
}

// Wherever the metadata comes from, no two store names have one home, and only the
// folder's name gives a backup one.
func TestHome(t *testing.T) {
	for _, test := range []struct {
		storeName, system string
		namespace, name   string // of the annotations
		want              string
	}{
		{"shop.daily", "holdfast", "shop", "daily", "shop/daily"},
		{"daily", "holdfast", "holdfast", "daily", ""},
		{"daily", "renamed", "holdfast", "daily", ""},           // another cluster's system namespace
		{"holdfast.daily", "holdfast", "holdfast", "daily", ""}, // a tenant there, the system namespace here
		{"daily", "holdfast", "shop", "daily", ""},              // forged: the folder says nothing of shop
		{"shop.daily", "holdfast", "", "", ""},                  // Velero's
		{"shop.daily", "holdfast", "other", "daily", ""},
		{"a.b.c", "holdfast", "a.b", "c", ""}, // no namespace has a dot
		{"a.b.c", "holdfast", "a", "b.c", ""}, // nor a backup of ours
		{".daily", "holdfast", "", "daily", ""},
	} {
		home, ok := Home(test.storeName, test.system, test.namespace, test.name)
		if ok != (test.want != "") || ok && home.String() != test.want {
			t.Errorf("%+v: got %s, %t", test, home, ok)
		}
	}
}

func FuzzDecodeBackup(f *testing.F) {
	for _, name := range []string{"velero-backup.json", "written-by-velero.json"} {
		data, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data, "shop.daily")
		f.Add(data, "nginx-2026")
	}
	f.Add([]byte(`{"apiVersion":"velero.io/v1","kind":"Backup","metadata":{"name":"b"},"spec":{"orLabelSelectors":[null]},"status":{"phase":"Completed"}}`), "b")
	f.Fuzz(func(t *testing.T, data []byte, storeName string) {
		place := Place{StoreName: storeName, Location: "default", SystemNamespace: "holdfast", Now: now}
		backup, err := DecodeBackup(data, place)
		if err != nil {
			return
		}
		if backup.UID == "" || backup.Namespace == "" || backup.Name == "" || !backup.Status.Phase.Ended() || backup.Spec.StorageLocation != "default" {
			t.Fatalf("decoded %+v", backup)
		}
		origin := backup.Status.Origin
		if backup.Namespace != "holdfast" || backup.Name != storeName || backup.Status.Requester != "" {
			t.Fatalf("%s is %s/%s, asked for by %q", storeName, backup.Namespace, backup.Name, backup.Status.Requester)
		}
		if home, ok := Home(storeName, "holdfast", origin.Namespace, origin.Name); ok && StoreName(home.Namespace, home.Name, "holdfast") != storeName {
			t.Fatalf("the home of %s is %s", storeName, home)
		}
		encoded, err := EncodeBackup(backup, nil, cluster)
		if err != nil {
			return // lacks what only our own backups are bound to have
		}
		again, err := DecodeBackup(encoded, place)
		if err != nil {
			t.Fatalf("its own encoding is refused: %v", err)
		}
		if again.Status.Origin.Trust != "" || again.Name != backup.Name || again.UID != backup.UID || again.Status.Phase != backup.Status.Phase {
			t.Fatalf("before %+v, after %+v", backup, again)
		}
	})
}
