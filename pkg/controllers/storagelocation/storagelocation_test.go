// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package storagelocation

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
	enginefactory "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

const system = "holdfast"

// inFolder is a location that is stored in a folder.
func inFolder(name, folder string) *enginev1alpha1.StorageLocation {
	return &enginev1alpha1.StorageLocation{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name, Generation: 1},
		Spec: enginev1alpha1.StorageLocationSpec{
			Provider:   enginev1alpha1.StorageProviderFilesystem,
			Filesystem: &enginev1alpha1.FilesystemLocation{Path: folder},
		},
	}
}

// harness runs the controller on a cluster, in a synctest bubble. Only the folders
// are real.
type harness struct {
	*testing.T
	*enginetest.Cluster
	controller *Controller
	events     *events.FakeRecorder
	// stop ends the process.
	stop context.CancelFunc
}

func start(t *testing.T, locations ...*enginev1alpha1.StorageLocation) *harness {
	t.Helper()
	return startAs(t, Config{ClusterUID: "cluster-of-" + t.Name(), Identity: "this"}, locations...)
}

// startAs runs the controller as one of a cluster and a process.
func startAs(t *testing.T, config Config, locations ...*enginev1alpha1.StorageLocation) *harness {
	t.Helper()
	h := &harness{T: t, Cluster: enginetest.New()}
	for _, location := range locations {
		h.Create(location)
	}
	records := enginefactory.NewSharedInformerFactory(h.Cluster, 0)
	h.events = events.NewFakeRecorder(100)
	config.Locations, config.Secrets, config.Events, config.Clock = h.EngineV1alpha1(), kubefake.NewClientset().CoreV1().Secrets(system), h.events, clock.RealClock{}
	config.LocationInformer = records.Engine().V1alpha1().StorageLocations()
	controller, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	h.controller = controller
	records.StartWithContext(t.Context())
	t.Cleanup(records.Shutdown)
	records.WaitForCacheSync(t.Context().Done())
	synctest.Wait() // for the watches: the fake forgets a deletion before a watch
	ctx, stop := context.WithCancel(t.Context())
	h.stop = stop
	go controller.Run(ctx)
	synctest.Wait()
	return h
}

func (h *harness) location(name string) *enginev1alpha1.StorageLocation {
	h.Helper()
	location, err := h.EngineV1alpha1().StorageLocations(system).Get(h.Context(), name, metav1.GetOptions{})
	if err != nil {
		h.Fatal(err)
	}
	return location
}

func (h *harness) expect(name string, available metav1.ConditionStatus, reason string) *metav1.Condition {
	h.Helper()
	synctest.Wait()
	condition := meta.FindStatusCondition(h.location(name).Status.Conditions, enginev1alpha1.ConditionAvailable)
	if condition == nil || condition.Status != available || condition.Reason != reason || condition.Message == "" {
		h.Fatalf("%s: %+v, want %s because of %s", name, condition, available, reason)
	}
	return condition
}

func TestAStoreThatComesAndGoes(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "store")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		h := start(t, inFolder("default", folder))
		begin := metav1.Now()
		condition := h.expect("default", metav1.ConditionTrue, enginev1alpha1.ReasonReachable)
		if condition.ObservedGeneration != 1 || !condition.LastTransitionTime.Time.Equal(begin.Time) {
			t.Errorf("condition: %+v", condition)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if writes := len(h.Writes("storagelocations")); writes != 1 {
			t.Errorf("%d writes of what did not change", writes)
		}

		move(t, folder, folder+".away")
		time.Sleep(checkInterval)
		h.expect("default", metav1.ConditionFalse, enginev1alpha1.ReasonUnreachable)
		time.Sleep(time.Hour)
		if writes := len(h.Writes("storagelocations")); writes != 2 {
			t.Errorf("%d writes; the message must be stable", writes)
		}

		move(t, folder+".away", folder)
		time.Sleep(retryInterval)
		h.expect("default", metav1.ConditionTrue, enginev1alpha1.ReasonReachable)
	})
}

func TestALocationThatCannotBeUsed(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*enginev1alpha1.StorageLocationSpec)
		says   string
	}{
		"a recovery key that is mistyped": {func(spec *enginev1alpha1.StorageLocationSpec) {
			spec.RecoveryKeys = []string{"age1qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqq"}
		}, "spec.recoveryKeys[0] is not a public key"},
		"no such provider": {func(spec *enginev1alpha1.StorageLocationSpec) { spec.Provider = "tape" }, "spec.provider"},
		"no such Secret": {func(spec *enginev1alpha1.StorageLocationSpec) {
			*spec = enginev1alpha1.StorageLocationSpec{Provider: enginev1alpha1.StorageProviderS3, S3: &enginev1alpha1.S3Location{Bucket: "backups", CredentialsSecret: "keys"}}
		}, "spec.s3.credentialsSecret"},
	} {
		t.Run(name, func(t *testing.T) {
			good := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				bad := inFolder("bad", "/nowhere")
				c.change(&bad.Spec)
				h := start(t, bad, inFolder("good", good))
				if condition := h.expect("bad", metav1.ConditionFalse, enginev1alpha1.ReasonInvalid); !strings.Contains(condition.Message, c.says) {
					t.Errorf("it says %q, and not %q", condition.Message, c.says)
				}
				h.expect("good", metav1.ConditionTrue, enginev1alpha1.ReasonReachable)
			})
		})
	}
}

func TestAChangedSpecIsCheckedAtOnce(t *testing.T) {
	folder := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		h := start(t, inFolder("default", filepath.Join(folder, "gone")))
		h.expect("default", metav1.ConditionFalse, enginev1alpha1.ReasonUnreachable)
		begin := time.Now()
		changed := h.location("default")
		changed.Spec.Filesystem.Path = folder
		changed.Generation = 2
		if _, err := h.EngineV1alpha1().StorageLocations(system).Update(t.Context(), changed, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		condition := h.expect("default", metav1.ConditionTrue, enginev1alpha1.ReasonReachable)
		if waited := time.Since(begin); waited != 0 || condition.ObservedGeneration != 2 {
			t.Errorf("it took %s, for generation %d", waited, condition.ObservedGeneration)
		}
	})
}

func TestTheConditionIsWrittenInTheEnd(t *testing.T) {
	folder := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		h := start(t)
		refusals := 3
		h.Fault(func(action clienttesting.Action) enginetest.Fault {
			if action.GetVerb() != "update" || refusals == 0 {
				return enginetest.Fault{}
			}
			refusals--
			return enginetest.Fault{Err: errors.New("the connection broke")}
		})
		h.Create(inFolder("default", folder))
		time.Sleep(time.Second)
		h.expect("default", metav1.ConditionTrue, enginev1alpha1.ReasonReachable)
	})
}

func TestALocationThatIsRemovedIsCheckedNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, inFolder("default", "/nowhere"))
		h.expect("default", metav1.ConditionFalse, enginev1alpha1.ReasonUnreachable)
		if err := h.EngineV1alpha1().StorageLocations(system).Delete(t.Context(), "default", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		h.ClearActions()
		time.Sleep(time.Hour)
		if len(h.Actions()) != 0 {
			t.Errorf("requests for what is gone: %v", h.Actions())
		}
	})
}

// Why a store can't be used is in the reason, by which programs and people tell it from others;
// the message says no more than is true for long.
func TestReasons(t *testing.T) {
	for reason, answer := range map[string]struct {
		code    string
		status  int
		message string
	}{
		enginev1alpha1.ReasonAccessDenied: {"InvalidAccessKeyId", http.StatusForbidden, "the store denies access (InvalidAccessKeyId)"},
		enginev1alpha1.ReasonNoSuchBucket: {"NoSuchBucket", http.StatusNotFound, "the bucket does not exist"},
		enginev1alpha1.ReasonClockSkew:    {"RequestTimeTooSkewed", http.StatusForbidden, "the clocks of the store and of this machine differ by too much: set the wrong one (RequestTimeTooSkewed)"},
		enginev1alpha1.ReasonUnreachable:  {"", http.StatusMovedPermanently, "the bucket is elsewhere: check region and endpoint"},
	} {
		spec, secret := storetest.FakeS3(t, func(http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(answer.status)
				_, _ = w.Write([]byte("<Error><Code>" + answer.code + "</Code></Error>"))
			})
		})
		got := unavailable(storetest.Open(t, spec, secret).Check(t.Context()), enginev1alpha1.ReasonUnreachable)
		if got.Reason != reason || got.Message != answer.message {
			t.Errorf("%s is said as %s: %s", answer.code, got.Reason, got.Message)
		}
	}
}

// STS's refusal is the location's reason, with the words that name the missing right.
func TestTheIdentityIsRefused(t *testing.T) {
	cloud := storetest.NewCloud(t)
	cloud.ServiceAccounts(t)
	spec, _ := storetest.FakeS3(t, cloud.Guard(storetest.RoleOfLocation))
	spec.S3.CredentialsSecret, spec.S3.RoleARN = "", storetest.RoleOfLocation
	cloud.ExternalID = "e1"
	got := unavailable(storetest.Open(t, spec, nil).Check(t.Context()), enginev1alpha1.ReasonUnreachable)
	if want := "STS refuses to give credentials (AccessDenied): User: " + storetest.RoleOfPods + "/pod is not authorized to perform: sts:AssumeRole on resource: " + storetest.RoleOfLocation; got.Reason != enginev1alpha1.ReasonAccessDenied || got.Message != want {
		t.Errorf("it is said as %s: %s, want %s", got.Reason, got.Message, want)
	}
	if cloud.Leaked(got.Message) {
		t.Errorf("a secret is in the message: %s", got.Message)
	}
}

// Of several locations that are marked as default each says which one is taken.
func TestSeveralDefaults(t *testing.T) {
	folder := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		var locations []*enginev1alpha1.StorageLocation
		for _, name := range []string{"c", "b", "a"} {
			location := inFolder(name, folder)
			location.Spec.Default = name != "a"
			locations = append(locations, location)
		}
		h := start(t, locations...)
		for name, want := range map[string]string{"a": "the store answers", "b": `the store answers; b, c are all marked as default, and "b" is taken`, "c": `the store answers; b, c are all marked as default, and "b" is taken`} {
			if got := h.expect(name, metav1.ConditionTrue, enginev1alpha1.ReasonReachable).Message; got != want {
				t.Errorf("%s says %q, want %q", name, got, want)
			}
		}
		changed := h.location("b")
		changed.Spec.Default, changed.Generation = false, 2
		if _, err := h.EngineV1alpha1().StorageLocations(system).Update(t.Context(), changed, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(checkInterval)
		if got := h.expect("c", metav1.ConditionTrue, enginev1alpha1.ReasonReachable).Message; got != "the store answers" {
			t.Errorf("after that c says %q", got)
		}
	})
}

// Pitfall 24: a store that answers each check and no run makes its location unavailable for a while, and
// for longer each time, whatever the checks say. One that has been well since, or whose record
// was changed, begins with the first length again.
func TestAStoreThatAnswersOnlyChecks(t *testing.T) {
	folder := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		h := start(t, inFolder("default", folder))
		key := cache.ObjectName{Namespace: system, Name: "default"}
		hold := func(want time.Duration) {
			t.Helper()
			h.expect("default", metav1.ConditionTrue, enginev1alpha1.ReasonReachable)
			begin := time.Now()
			for range 3 { // those that were let start before all knew
				written, err := h.controller.Hold(t.Context(), key, errors.New("no route to host"))
				if err != nil || meta.IsStatusConditionTrue(written.Status.Conditions, enginev1alpha1.ConditionAvailable) {
					t.Fatalf("Hold: %+v, %v", written, err)
				}
				if condition := h.expect("default", metav1.ConditionFalse, enginev1alpha1.ReasonUnreachable); !strings.Contains(condition.Message, "no route to host") {
					t.Errorf("it says %q", condition.Message)
				}
			}
			if err := h.controller.Check(t.Context(), key); err != nil {
				t.Fatal(err)
			}
			time.Sleep(want - time.Second)
			h.expect("default", metav1.ConditionFalse, enginev1alpha1.ReasonUnreachable)
			time.Sleep(time.Second)
			h.expect("default", metav1.ConditionTrue, enginev1alpha1.ReasonReachable)
			if held := time.Since(begin); held != want {
				t.Errorf("held for %s, want %s", held, want)
			}
		}
		h.ClearActions()
		for _, want := range []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second, 160 * time.Second, 5 * time.Minute, 5 * time.Minute} {
			hold(want)
		}
		if writes := len(h.Writes("storagelocations")); writes != 2*7 {
			t.Errorf("%d writes for 7 times, want 2 each", writes)
		}
		time.Sleep(checkInterval)
		hold(firstHold)
		hold(2 * firstHold)
		changed := h.location("default")
		changed.Generation = 2
		if _, err := h.EngineV1alpha1().StorageLocations(system).Update(t.Context(), changed, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		hold(firstHold)
		if none, err := h.controller.Hold(t.Context(), cache.ObjectName{Namespace: system, Name: "gone"}, errors.New("it is gone")); none != nil || err != nil {
			t.Errorf("one that is gone: %+v, %v", none, err)
		}
	})
}
