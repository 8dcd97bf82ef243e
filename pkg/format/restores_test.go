// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package format

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// What is told of a restore says of which cluster it is, and can't be changed unseen; what the
// requester has written in our name is not told.
func TestRestoreMetadata(t *testing.T) {
	key, err := ParseSigningKey(bytes.Repeat([]byte{7}, 32))
	if err != nil {
		t.Fatal(err)
	}
	cluster := Cluster{UID: "us", Key: key}
	restore := &v1alpha1.Restore{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "back", UID: "u", ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl"}},
			Annotations: map[string]string{"team": "a", AnnotationClusterUID: "them", AnnotationSignature: "mine", AnnotationContents: "mine"},
		},
		Spec: v1alpha1.RestoreSpec{BackupName: "nightly"},
		Status: v1alpha1.RestoreStatus{
			Phase:  v1alpha1.RestorePhaseCompleted,
			Backup: &v1alpha1.RestoredBackup{Namespace: "shop", Name: "nightly", UID: "b", StorageLocation: "default"},
			Origin: &v1alpha1.BackupOrigin{NamespaceUID: "n"},
		},
	}
	contents := Contents{}
	contents.Set(RestoreLogKey("shop.back-0123456789"), NewContent([]byte("log")))
	decode := func(data []byte) (*v1alpha1.Restore, *v1alpha1.BackupOrigin) {
		t.Helper()
		got, gotContents, origin, err := DecodeRestore(data)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(contents, gotContents); diff != "" && origin.Trust != v1alpha1.BackupTrustForged {
			t.Errorf("what its objects hold (-want +got):\n%s", diff)
		}
		return got, origin
	}
	encode := func(cluster Cluster) []byte {
		t.Helper()
		data, err := EncodeRestore(restore, contents, cluster)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	before := restore.DeepCopy()
	data := encode(cluster)
	if diff := cmp.Diff(before, restore); diff != "" {
		t.Errorf("encoding changes it:\n%s", diff)
	}
	got, origin := decode(data)
	if diff := cmp.Diff(&v1alpha1.BackupOrigin{ClusterUID: "us", PublicKey: key.PublicKey(), Namespace: "shop", Name: "back", NamespaceUID: "n"}, origin); diff != "" {
		t.Errorf("where it comes from (-want +got):\n%s", diff)
	}
	want := restore.DeepCopy()
	want.TypeMeta = metav1.TypeMeta{APIVersion: "holdfast.io/v1alpha1", Kind: "Restore"}
	want.Annotations = map[string]string{"team": "a"}
	want.ManagedFields, want.Status.Origin = nil, nil // the latter is told apart from the rest
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what is told (-want +got):\n%s", diff)
	}
	for name, c := range map[string]struct {
		data  []byte
		trust v1alpha1.BackupTrust
	}{
		"another cluster":      {bytes.Replace(data, []byte(`"us"`), []byte(`"me"`), 1), v1alpha1.BackupTrustForged},
		"another phase":        {bytes.Replace(data, []byte("Completed"), []byte("Failed"), 1), v1alpha1.BackupTrustForged},
		"another log":          {bytes.Replace(data, []byte(contents["restore-shop.back-0123456789-logs.gz"].SHA256), []byte(NewContent(nil).SHA256), 1), v1alpha1.BackupTrustForged},
		"no key":               {encode(Cluster{UID: "us"}), v1alpha1.BackupTrustForeign},
		"nobody knows whose":   {encode(Cluster{}), v1alpha1.BackupTrustForeign},
		"written anew by hand": {[]byte(strings.ReplaceAll(string(data), `,"`, `, "`)), ""},
	} {
		if _, origin := decode(c.data); origin.Trust != c.trust {
			t.Errorf("%s: the trust is %q, not %q", name, origin.Trust, c.trust)
		}
	}
	// A name that comes twice has a last value, which is what was signed.
	if got, origin := decode(bytes.Replace(data, []byte(`"status":{`), []byte(`"status":{"failureReason":"made up"},"status":{`), 1)); origin.Trust != "" || got.Status.FailureReason != "" {
		t.Errorf("what was not verified is read: %q, %+v", got.Status.FailureReason, origin)
	}
	for name, data := range map[string][]byte{
		"a Backup":               bytes.Replace(data, []byte(`"Restore"`), []byte(`"Backup"`), 1),
		"one of another version": bytes.Replace(data, []byte(`holdfast.io/v1alpha1`), []byte(`holdfast.io/v1alpha2`), 1),
		"a text":                 []byte(`{"apiVersion":"holdfast.io/v1alpha1","kind":"Restore","spec":"text"}`),
	} {
		if got, _, _, err := DecodeRestore(data); err == nil {
			t.Errorf("%s is taken for a Restore: %+v", name, got)
		}
	}
	if _, _, _, err := DecodeRestore([]byte(`{"apiVersion":"holdfast.io/v1alpha1","kind":"Restore","metadata":{"annotations":{"` + AnnotationContents + `":"["}}}`)); err == nil {
		t.Error("contents that are none are read")
	}
	// A fraction has no canonical form: it is told all the same, and not signed.
	restore.Spec.Hooks.Resources = []v1alpha1.RestoreResourceHookSpec{{PostHooks: []v1alpha1.RestoreResourceHook{{
		Init: &v1alpha1.InitRestoreHook{InitContainers: []runtime.RawExtension{{Raw: []byte(`{"resources":{"limits":{"cpu":0.5}}}`)}}},
	}}}}
	if _, origin := decode(encode(cluster)); origin.Trust != v1alpha1.BackupTrustForeign || origin.ClusterUID != "us" {
		t.Errorf("with a fraction it comes from %+v", origin)
	}
}

func TestRestoreWithoutAnnotations(t *testing.T) {
	restore := &v1alpha1.Restore{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "back", UID: "u"}}
	data, err := EncodeRestore(restore, nil, cluster)
	if err != nil {
		t.Fatal(err)
	}
	got, contents, _, err := DecodeRestore(data)
	if err != nil || got.Annotations != nil || contents != nil {
		t.Errorf("%v, %v, %v", got, contents, err)
	}
}

// Which folders hold what is told of restores, and of which one: others are left alone.
func TestRestoreStoreNames(t *testing.T) {
	name := RestoreStoreName("shop", "back", "holdfast", "u")
	if got, ok := RestoreStoreNameOf(RestoresPrefix + name + "/"); !ok || got != name {
		t.Errorf("%s: %q, %v", name, got, ok)
	}
	for _, folder := range []string{
		RestoresPrefix + name, RestoresPrefix + "shop.back/", RestoresPrefix + name + "/x/", RestoresPrefix + "../" + name + "/", RestoresPrefix + "Shop-0123456789/", RestoresPrefix + "-0123456789/",
	} {
		if got, ok := RestoreStoreNameOf(folder); ok {
			t.Errorf("%s is that of the restore %q", folder, got)
		}
	}
	restore := func(namespace, name string, uid types.UID) *v1alpha1.Restore {
		return &v1alpha1.Restore{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: uid}}
	}
	of := restore("shop", "back", "u")
	for storeName, want := range map[string]bool{
		name: true, RestoreStoreName("shop", "back", "shop", "u"): true, // if shop is the system namespace
		RestoreStoreName("shop", "back", "", "v"): false, RestoreStoreName("shop", "other", "", "u"): false, "shop.back": false,
	} {
		if got := IsRestoreStoreName(storeName, of); got != want {
			t.Errorf("%s: %v", storeName, got)
		}
	}
	for _, lacking := range []*v1alpha1.Restore{restore("", "back", "u"), restore("shop", "", "u"), restore("shop", "back", "")} {
		if storeName := RestoreStoreName(lacking.Namespace, lacking.Name, "", lacking.UID); IsRestoreStoreName(storeName, lacking) {
			t.Errorf("%s is that of %s/%s with the uid %q", storeName, lacking.Namespace, lacking.Name, lacking.UID)
		}
	}
}
