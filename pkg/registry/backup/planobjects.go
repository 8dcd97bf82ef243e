// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/pkg/registry/recorded"
)

// PlanObjectsREST serves backups/plan with the verb create: the plan of a posted Backup, with all its objects.
// Nothing is created. It makes the checks of a dry run, and takes the right to create the backup. It names only
// objects that the reader would see in the manifest.
type PlanObjectsREST struct {
	Planning *PlanningREST
	// Plan has a backup planned, and passes on each object as it comes.
	Plan func(ctx context.Context, run *enginev1alpha1.BackupRun, each func(v1alpha1.PlannedRelated) error) (*v1alpha1.BackupPlan, error)
}

var _ rest.NamedCreater = &PlanObjectsREST{}

// New implements rest.Storage.
func (r *PlanObjectsREST) New() runtime.Object { return &v1alpha1.Backup{} }

// Destroy implements rest.Storage.
func (r *PlanObjectsREST) Destroy() {}

// Create implements rest.NamedCreater. The answer streams.
func (r *PlanObjectsREST) Create(ctx context.Context, name string, obj runtime.Object, _ rest.ValidateObjectFunc, _ *metav1.CreateOptions) (runtime.Object, error) {
	backup, ok := obj.DeepCopyObject().(*v1alpha1.Backup)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a backup: %T", obj))
	}
	if backup.Name != "" && backup.Name != name {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("metadata.name is %q, but the request is about the backup %q", backup.Name, name))
	}
	backup.Name, backup.GenerateName = name, ""
	requester, err := recorded.RequesterFrom(ctx)
	if err != nil {
		return nil, err
	}
	right := recorded.Right{Verb: "create", Resource: v1alpha1.SchemeGroupVersion.WithResource(resource.Resource)}
	scope := recorded.Scope{Namespace: genericapirequest.NamespaceValue(ctx), Because: "its plan is for users who may create it"}
	if _, err := right.Authorize(ctx, r.Planning.Kind.(*kind).authorizer, requester, name, []recorded.Scope{scope}); err != nil {
		return nil, err
	}
	created, err := r.Planning.REST.Create(ctx, backup, nil, &metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		return nil, err
	}
	return &plannedObjects{PlanObjectsREST: r, run: plannedRun(created.(*v1alpha1.Backup), requester), reader: r.Planning.planReader(requester)}, nil
}

type plannedObjects struct {
	*PlanObjectsREST
	run    *enginev1alpha1.BackupRun
	reader *reader
}

var _ rest.ResourceStreamer = &plannedObjects{}

// GetObjectKind implements runtime.Object.
func (p *plannedObjects) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object. Nothing copies it.
func (p *plannedObjects) DeepCopyObject() runtime.Object { panic("an answer is sent once") }

// InputStream implements rest.ResourceStreamer. It fails if nothing was planned.
func (p *plannedObjects) InputStream(ctx context.Context, _, _ string) (io.ReadCloser, bool, string, error) {
	ctx, cancel := context.WithCancel(ctx)
	from, to := io.Pipe()
	go func() { to.CloseWithError(p.write(ctx, to)) }()
	buffered := bufio.NewReaderSize(from, pieceBytes)
	stream := &planStream{from: buffered, end: func() { cancel(); _ = from.Close() }}
	if _, err := buffered.Peek(1); err != nil {
		_ = stream.Close()
		return nil, false, "", unplanned(err)
	}
	return stream, false, "application/json", nil
}

func unplanned(err error) error {
	if _, ok := errors.AsType[*apierrors.StatusError](err); ok {
		return err
	}
	return apierrors.NewServiceUnavailable(fmt.Sprintf("the controller did not compute the plan: %v: try again", err))
}

func (p *plannedObjects) write(ctx context.Context, to io.Writer) error {
	out := &pieces{to: to}
	line := func(v any) error {
		encoded, err := json.Marshal(v)
		if err != nil {
			return err
		}
		if out.buffer = append(out.buffer, encoded...); len(out.buffer) < pieceBytes {
			return nil
		}
		return out.flush()
	}
	separator := "{\"items\":[\n"
	plan, err := p.Plan(ctx, p.run, func(object v1alpha1.PlannedRelated) error {
		if err := p.hide(ctx, &object); err != nil {
			return err
		}
		out.text(separator)
		separator = ",\n"
		return line(object)
	})
	if err != nil {
		return err
	}
	if err := p.Planning.complete(ctx, plan, p.run, p.reader); err != nil {
		return err
	}
	if separator != ",\n" {
		out.text(separator)
	}
	out.text("\n],\"plan\":")
	if err := line(plan); err != nil {
		return err
	}
	out.text("}\n")
	return out.flush()
}

// hide removes an object's name if the reader may not know it.
func (p *plannedObjects) hide(ctx context.Context, object *v1alpha1.PlannedRelated) error {
	may, err := p.reader.mayReadIn(ctx, object.Namespace)
	if err == nil && may {
		of := schema.ParseGroupResource(object.Resource)
		may, err = p.reader.mayKnowOf(ctx, &manifest.Item{APIGroup: of.Group, Resource: of.Resource, Namespace: object.Namespace})
	}
	if err == nil && !may {
		object.Name, object.Reason = "", ""
	}
	return err
}

// planStream breaks off the connection if the plan breaks off, so that a part does not look whole.
type planStream struct {
	from io.Reader
	end  func()
}

// Read implements io.Reader.
func (s *planStream) Read(p []byte) (int, error) {
	n, err := s.from.Read(p)
	if err != nil && err != io.EOF {
		panic(http.ErrAbortHandler)
	}
	return n, err
}

// Close implements io.Closer.
func (s *planStream) Close() error {
	s.end()
	return nil
}
