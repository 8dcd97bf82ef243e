// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshots

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
)

// TestVolumeLabel: the label of a volume is one for good, since contents have it, and another for each claim.
func TestVolumeLabel(t *testing.T) {
	if got := VolumeLabel("shop", "data"); got != "1cc2048001c119a0d5fd01e4655628ae" || len(validation.IsValidLabelValue(got)) > 0 {
		t.Errorf("it is %q", got)
	}
	seen := map[string]bool{}
	for _, of := range [][2]string{{"shop", "data"}, {"shop", "date"}, {"shopd", "ata"}, {"sho", "pdata"}, {"data", "shop"}} {
		seen[VolumeLabel(of[0], of[1])] = true
	}
	if len(seen) != 5 {
		t.Errorf("five claims have %d labels", len(seen))
	}
}

// labelledContent is the metadata of a content of the claim shop/data, with other labels: "" is for none.
func labelledContent(name string, change map[string]string, finalizers ...string) *metav1.PartialObjectMetadata {
	labels := map[string]string{LabelCluster: ours, LabelBackup: "backup", LabelClaim: "claim", LabelVolume: VolumeLabel("shop", "data")}
	for label, value := range change {
		if labels[label] = value; value == "" {
			delete(labels, label)
		}
	}
	return &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: Version.String(), Kind: "VolumeSnapshotContent"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels, Finalizers: finalizers, Annotations: map[string]string{"a": "b"}},
	}
}

// TestRecords: a record is a held content with the labels. A content that may be one leaves it open.
func TestRecords(t *testing.T) {
	held := []string{finalizerBound, Finalizer}
	deleted := labelledContent("a", nil, held...)
	deleted.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	local := map[string]string{LabelKeepLocal: "2"}
	for name, test := range map[string]struct {
		contents             []any
		beside, found, known bool
	}{
		"none":                       {nil, false, false, true},
		"kept":                       {[]any{labelledContent("a", nil, held...)}, false, true, true},
		"deleted by others":          {[]any{deleted}, false, true, true},
		"beside":                     {[]any{labelledContent("a", local, held...)}, true, true, true},
		"beside in place of kept":    {[]any{labelledContent("a", local, held...)}, false, false, true},
		"kept in place of beside":    {[]any{labelledContent("a", nil, held...)}, true, false, true},
		"that leaves":                {[]any{labelledContent("a", map[string]string{LabelMoved: "true"}, held...)}, false, false, true},
		"not held":                   {[]any{labelledContent("a", nil, finalizerBound)}, false, false, false},
		"of an earlier version":      {[]any{labelledContent("a", map[string]string{LabelVolume: ""}, held...)}, false, false, false},
		"beside, not held":           {[]any{labelledContent("a", local, finalizerBound)}, true, false, false},
		"that leaves, of an earlier": {[]any{labelledContent("a", map[string]string{LabelVolume: "", LabelMoved: "true"}, held...)}, false, false, true},
		"another volume's":           {[]any{labelledContent("a", map[string]string{LabelVolume: VolumeLabel("shop", "logs")}, held...)}, false, false, true},
		"another's, not held":        {[]any{labelledContent("a", map[string]string{LabelVolume: VolumeLabel("shop", "logs")})}, false, false, true},
		"another backup's":           {[]any{labelledContent("a", map[string]string{LabelBackup: "other"}, held...)}, false, false, true},
		"another cluster's":          {[]any{labelledContent("a", map[string]string{LabelCluster: "other"}, held...)}, false, false, true},
		"two, one not held":          {[]any{labelledContent("a", nil, held...), labelledContent("b", nil)}, false, true, true},
	} {
		r := NewRecords(nil)
		check := func(when string, found, known bool) {
			t.Helper()
			if gotFound, gotKnown := r.Has(ours, "backup", "shop", "data", test.beside); gotFound != found || gotKnown != known {
				t.Errorf("%s, %s: found is %t, known is %t, want %t and %t", name, when, gotFound, gotKnown, found, known)
			}
		}
		transform := r.Transformer()
		for i := range test.contents {
			trimmed, err := transform(test.contents[i].(*metav1.PartialObjectMetadata).DeepCopy())
			if err != nil {
				t.Fatal(err)
			}
			if of := trimmed.(*metav1.PartialObjectMetadata); len(of.Annotations) > 0 || len(of.Finalizers) > 1 || of.Labels[LabelClaim] != "" {
				t.Errorf("%s: %+v is kept", name, of.ObjectMeta)
			}
			if err := r.Add(trimmed); err != nil {
				t.Fatal(err)
			}
			test.contents[i] = trimmed
		}
		check("before a list", false, false)
		if err := r.Replace(test.contents, ""); err != nil {
			t.Fatal(err)
		}
		check("listed", test.found, test.known)
		for _, content := range test.contents {
			if err := r.Update(content); err != nil {
				t.Fatal(err)
			}
		}
		check("changed", test.found, test.known)
		for _, content := range test.contents {
			if err := r.Delete(content); err != nil {
				t.Fatal(err)
			}
		}
		check("deleted", false, true)
		if len(r.contents)+len(r.counts) > 0 {
			t.Errorf("%s: %v and %v stay", name, r.contents, r.counts)
		}
	}
}

// lists checks the options of lists: the fake client forgets some.
type lists struct {
	*fake.FakeMetadataClient
	t *testing.T
}

// Resource implements metadata.Interface.
func (l lists) Resource(of schema.GroupVersionResource) metadata.Getter {
	return listsOf{l.FakeMetadataClient.Resource(of), l.t}
}

type listsOf struct {
	metadata.Getter
	t *testing.T
}

// List implements metadata.Getter.
func (l listsOf) List(ctx context.Context, options metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	if options.LabelSelector != LabelCluster || options.ResourceVersion == "0" {
		l.t.Errorf("%+v is listed: a cache of a server may be old", options)
	}
	return l.Getter.List(ctx, options)
}

// TestRecordsAreFollowed: nothing is known while the API is not served, or a list or a watch is refused.
func TestRecordsAreFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// The library delays each error by the time since the last one, which was not of this test's clock.
		utilruntime.HandleErrorWithContext(t.Context(), nil, "A test begins")
		scheme := fake.NewTestScheme()
		if err := metav1.AddMetaToScheme(scheme); err != nil {
			t.Fatal(err)
		}
		content := labelledContent("a", nil, Finalizer)
		client := fake.NewSimpleMetadataClient(scheme, content, labelledContent("of-others", map[string]string{LabelCluster: ""}))
		var refusal atomic.Pointer[apierrors.StatusError]
		var following *watch.RaceFreeFakeWatcher
		client.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
			if err := refusal.Load(); err != nil {
				return true, nil, err
			}
			return false, nil, nil
		})
		client.PrependWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
			if err := refusal.Load(); err != nil {
				return true, nil, err
			}
			following = watch.NewRaceFreeFake()
			return true, following, nil
		})
		r := NewRecords(lists{client, t})
		ctx, stop := context.WithCancel(t.Context())
		ran := make(chan struct{})
		go func() {
			defer close(ran)
			r.Run(ctx)
		}()
		defer func() {
			stop()
			<-ran
		}()
		check := func(when string, wantFound, wantKnown bool) {
			t.Helper()
			synctest.Wait()
			if found, known := r.Has(ours, "backup", "shop", "data", false); found != wantFound || known != wantKnown {
				t.Errorf("%s: found is %t, known is %t", when, found, known)
			}
		}
		missing := apierrors.NewNotFound(Contents.GroupResource(), "")
		forbidden := apierrors.NewForbidden(Contents.GroupResource(), "", nil)

		refusal.Store(missing)
		check("not served", false, false)
		time.Sleep(time.Hour)
		check("not served for an hour", false, false)
		refusal.Store(forbidden)
		time.Sleep(time.Hour)
		check("without the right", false, false)
		refusal.Store(nil)
		time.Sleep(time.Minute)
		check("listed", true, true)
		following.Delete(content)
		check("deleted", false, true)
		following.Add(content)
		check("made", true, true)
		following.Stop()
		check("followed once more", true, true)
		following.Stop() // the library now waits before it lists
		check("not followed", false, false)
		time.Sleep(time.Minute)
		check("listed once more", true, true)
		refusal.Store(forbidden)
		following.Stop()
		check("the right is lost", false, false)
		refusal.Store(nil)
		time.Sleep(time.Minute)
		check("the right is back", true, true)
	})
}
