// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package streamed

import (
	"context"
	"fmt"
	"net/url"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/holdfast-io/holdfast/pkg/registry/logstore"
)

// FollowParameter makes an answer wait for the end of its object.
const FollowParameter = "follow"

// Ending finds objects whose files are stored when they have ended.
type Ending[T logstore.Object] struct {
	Objects interface {
		rest.Getter
		rest.Watcher
	}
	Noun     string
	Phase    func(T) (phase string, ended bool)
	Begun    func(T) bool                                 // whether something is shown before the end; optional
	Conflict func(name, format string, args ...any) error // the error of a request that does not fit an object's state
}

// Follow reports whether a request waits for the end of its object.
func Follow(parameters url.Values) (bool, error) {
	value := parameters.Get(FollowParameter)
	if value == "" {
		return false, nil
	}
	follow, err := strconv.ParseBool(value)
	if err != nil {
		return false, apierrors.NewBadRequest(fmt.Sprintf("the parameter %s is %q: it must be true or false", FollowParameter, value))
	}
	return follow, nil
}

// Find returns an object that has ended, or begun if that suffices. With follow, it waits.
func (e *Ending[T]) Find(ctx context.Context, name, subresource string, parameters url.Values) (T, error) {
	var none T
	follow, err := Follow(parameters)
	if err != nil {
		return none, err
	}
	found, err := e.Objects.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return none, err
	}
	obj := found.(T)
	switch phase, _ := e.Phase(obj); {
	case e.shown(obj):
		return obj, nil
	case !follow:
		return none, e.Conflict(name, "it is %s, and its %s is stored when it has ended: wait for its condition Complete, or ask with ?%s=true", phase, subresource, FollowParameter)
	}
	return e.await(ctx, obj)
}

func (e *Ending[T]) shown(obj T) bool {
	_, ended := e.Phase(obj)
	return ended || e.Begun != nil && e.Begun(obj)
}

// await waits for the end or the beginning of an object, and ignores others of its name.
func (e *Ending[T]) await(ctx context.Context, obj T) (T, error) {
	var none T
	watch, err := e.Objects.Watch(ctx, &metainternalversion.ListOptions{
		FieldSelector:   fields.OneTermEqualSelector("metadata.name", obj.GetName()),
		ResourceVersion: obj.GetResourceVersion(),
	})
	if err != nil {
		return none, err
	}
	defer watch.Stop()
	for event := range watch.ResultChan() {
		if status, failed := event.Object.(*metav1.Status); failed {
			return none, &apierrors.StatusError{ErrStatus: *status}
		}
		changed, ok := event.Object.(T)
		if !ok {
			continue
		}
		if changed.GetUID() != obj.GetUID() || event.Type == apiwatch.Deleted {
			return none, NotFound(fmt.Sprintf("the %s %q is gone", e.Noun, obj.GetName()))
		}
		if e.shown(changed) {
			return changed, nil
		}
	}
	// The watch ends with the request, and when this server stops.
	return none, apierrors.NewServiceUnavailable(fmt.Sprintf("the %s %q has not ended yet, and this server can't wait any longer: ask again", e.Noun, obj.GetName()))
}
