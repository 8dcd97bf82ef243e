// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/pkg/registry/virtual"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/stored"
)

// ObjectResource is backupobjects.
var ObjectResource = virtual.Resource[*v1alpha1.BackupObject]{
	GroupResource: v1alpha1.Resource("backupobjects"),
	Singular:      "backupobject",
	ShortNames:    []string{"hfo"},
	Namespaced:    true,
	Object:        &v1alpha1.BackupObject{},
	List:          &v1alpha1.BackupObjectList{},
	Fields: map[string]func(*v1alpha1.BackupObject) string{
		"kind":      func(o *v1alpha1.BackupObject) string { return o.Spec.Kind },
		"name":      func(o *v1alpha1.BackupObject) string { return o.Spec.Name },
		"namespace": func(o *v1alpha1.BackupObject) string { return o.Spec.Namespace },
		"backup":    func(o *v1alpha1.BackupObject) string { return o.Spec.Backup },
		"phase":     func(o *v1alpha1.BackupObject) string { return string(o.Spec.BackupPhase) },
		"image":     func(o *v1alpha1.BackupObject) string { return strings.Join(o.Spec.Images, ",") },
	},
	Columns: []virtual.Column[*v1alpha1.BackupObject]{
		virtual.Text("Backup", "The backup.", func(o *v1alpha1.BackupObject) string { return o.Spec.Backup }),
		virtual.Text("Status", "The phase of the backup.", func(o *v1alpha1.BackupObject) string { return string(o.Spec.BackupPhase) }),
		virtual.Text("Object", "The object.", func(o *v1alpha1.BackupObject) string {
			return strings.TrimPrefix(o.Spec.Namespace+"/", "/") + o.Spec.Kind + "/" + o.Spec.Name
		}),
		virtual.Text("Version", "The beginning of the digest of the object's JSON.", func(o *v1alpha1.BackupObject) string {
			return o.Spec.SHA256[:min(12, len(o.Spec.SHA256))]
		}),
		virtual.Text("Size", "Size of the object's JSON.", func(o *v1alpha1.BackupObject) string { return virtual.Bytes(o.Spec.Size) }),
		virtual.Timed("Age", "Time since the backup began to read.", func(o *v1alpha1.BackupObject, now time.Time) string {
			return virtual.Age(&o.Spec.BackupTimestamp, now)
		}),
		virtual.Wide(virtual.Text("Uid", "The UID of the object.", func(o *v1alpha1.BackupObject) string { return string(o.Spec.UID) })),
		virtual.Wide(virtual.Text("Reason", "Why the backup took it.", func(o *v1alpha1.BackupObject) string { return o.Spec.Reason })),
		virtual.Wide(virtual.Text("Images", "The images of its containers.", func(o *v1alpha1.BackupObject) string { return strings.Join(o.Spec.Images, ",") })),
	},
}

const (
	findRows = 500              // objects in an answer
	findTime = 15 * time.Second // until a list ends with a continue token
	// Backups that are read at once, by one list and by all.
	findAtOnce, findReads = 32, 64
	findTimeout           = 20 * time.Second // of backups that are read at once
)

// FindREST lists the objects of stored backups by their manifests, newest backups first. It shows what
// backups/manifest shows to the reader. A backup costs three reads, and one more to a tenant for other
// namespaces. Each kind that is far away in a large manifest costs one. A list ends with a continue token after findRows objects
// or findTime.
type FindREST struct {
	rest.TableConvertor
	contents *Contents
	clock    clock.PassiveClock
	reads    chan struct{}
}

var (
	_ rest.Storage              = &FindREST{}
	_ rest.Lister               = &FindREST{}
	_ rest.Scoper               = &FindREST{}
	_ rest.SingularNameProvider = &FindREST{}
	_ rest.ShortNamesProvider   = &FindREST{}
)

// NewFindREST returns the storage of backupobjects.
func NewFindREST(contents *Contents, clock clock.PassiveClock) *FindREST {
	return &FindREST{TableConvertor: &ObjectResource, contents: contents, clock: clock, reads: make(chan struct{}, findReads)}
}

// New implements rest.Storage.
func (r *FindREST) New() runtime.Object { return &v1alpha1.BackupObject{} }

// NewList implements rest.Lister.
func (r *FindREST) NewList() runtime.Object { return &v1alpha1.BackupObjectList{} }

// Destroy implements rest.Storage.
func (r *FindREST) Destroy() {}

// NamespaceScoped implements rest.Scoper.
func (r *FindREST) NamespaceScoped() bool { return true }

// GetSingularName implements rest.SingularNameProvider.
func (r *FindREST) GetSingularName() string { return ObjectResource.Singular }

// ShortNames implements rest.ShortNamesProvider.
func (r *FindREST) ShortNames() []string { return ObjectResource.ShortNames }

type search struct {
	filter
	backup, phase, image string
	limit                int
	from                 *position
	query                string // identifies the search in continue tokens
}

// position is where a list continues: behind an item of a backup, or at the backup's beginning.
type position struct {
	Query     string   `json:"q"`
	Time      int64    `json:"t"` // of the backup
	Namespace string   `json:"s"`
	Name      string   `json:"n"`
	After     []string `json:"a,omitempty"` // the last listed item, or empty
}

func (r *FindREST) parse(namespace string, options *internalversion.ListOptions) (*search, error) {
	s := &search{filter: filter{labels: labels.Everything()}, limit: findRows}
	if options == nil {
		options = &internalversion.ListOptions{}
	}
	if options.LabelSelector != nil {
		s.labels = options.LabelSelector
	}
	texts := []string{namespace, s.labels.String()}
	if options.FieldSelector != nil {
		texts = append(texts, options.FieldSelector.String())
		for _, of := range options.FieldSelector.Requirements() {
			if of.Operator != selection.Equals && of.Operator != selection.DoubleEquals {
				return nil, apierrors.NewBadRequest(fmt.Sprintf("the field selector %s%s%s: backupobjects are selected by = only", of.Field, of.Operator, of.Value))
			}
			switch of.Field {
			case "kind":
				s.kind = of.Value
			case "name":
				s.name = of.Value
			case "namespace":
				s.namespace = new(of.Value)
			case "backup":
				s.backup = of.Value
			case "phase":
				s.phase = of.Value
			case "image":
				s.image = of.Value
			default:
				return nil, apierrors.NewBadRequest(fmt.Sprintf("the field selector %s: use kind, name, namespace, backup, phase or image", of.Field))
			}
		}
	}
	if s.kind == "" && s.image == "" {
		return nil, apierrors.NewBadRequest("the field selector kind is missing: name the kind of the objects, as in --field-selector kind=Secret,name=key, or an image, as in image=nginx:1.27")
	}
	sum := sha256.Sum256([]byte(strings.Join(texts, "\x00")))
	s.query = base64.RawURLEncoding.EncodeToString(sum[:9])
	if options.Limit > 0 {
		s.limit = int(min(options.Limit, findRows))
	}
	if options.Continue != "" {
		s.from = &position{}
		encoded, err := base64.RawURLEncoding.DecodeString(options.Continue)
		if err == nil {
			err = json.Unmarshal(encoded, s.from)
		}
		if err != nil || s.from.Query != s.query {
			return nil, apierrors.NewBadRequest("the continue token is not of a list of backupobjects with these selectors: begin without it")
		}
	}
	return s, nil
}

func (s *search) token(backup *v1alpha1.Backup, after []string) string {
	encoded, _ := json.Marshal(position{s.query, taken(backup).UnixNano(), backup.Namespace, backup.Name, after}) // texts and a number
	return base64.RawURLEncoding.EncodeToString(encoded)
}

func taken(backup *v1alpha1.Backup) *metav1.Time {
	if backup.Status.StartTimestamp != nil {
		return backup.Status.StartTimestamp
	}
	return &backup.CreationTimestamp
}

func (p *position) compareTo(backup *v1alpha1.Backup) int {
	return cmp.Or(cmp.Compare(taken(backup).UnixNano(), p.Time), cmp.Compare(p.Namespace, backup.Namespace), cmp.Compare(p.Name, backup.Name))
}

func (r *FindREST) candidates(ctx context.Context, s *search) ([]*v1alpha1.Backup, error) {
	list, err := r.contents.Backups.List(ctx, &internalversion.ListOptions{})
	if err != nil {
		return nil, err
	}
	items := list.(*v1alpha1.BackupList).Items
	var backups []*v1alpha1.Backup
	for i := range items {
		backup := &items[i]
		switch phase := backup.Status.Phase; {
		case phase != v1alpha1.BackupPhaseCompleted && phase != v1alpha1.BackupPhasePartiallyFailed:
		case s.backup != "" && backup.Name != s.backup || s.phase != "" && string(phase) != s.phase:
		case s.from != nil && s.from.compareTo(backup) > 0:
		default:
			backups = append(backups, backup)
		}
	}
	slices.SortFunc(backups, func(a, b *v1alpha1.Backup) int {
		return cmp.Or(taken(b).Compare(taken(a).Time), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return backups, nil
}

type found struct {
	rows []v1alpha1.BackupObject
	keys [][]string // in the manifest; more is true if there are further ones
	more bool
	// without means without a manifest, imageless without images of workloads in it.
	without, imageless bool

	err error
}

// List implements rest.Lister.
func (r *FindREST) List(ctx context.Context, options *internalversion.ListOptions) (runtime.Object, error) {
	namespace := genericapirequest.NamespaceValue(ctx)
	s, err := r.parse(namespace, options)
	if err != nil {
		return nil, err
	}
	rights, err := r.contents.reader(ctx, &v1alpha1.Backup{}, "manifest")
	if err != nil {
		return nil, err
	}
	if may, err := rights.once(ctx, v1alpha1.SchemeGroupVersion.WithResource(resource.Resource), rights.of(namespace)); err != nil || !may {
		return nil, rights.forbidden(rights.of(namespace), err)
	}
	backups, err := r.candidates(ctx, s)
	if err != nil {
		return nil, err
	}
	result := &v1alpha1.BackupObjectList{Items: []v1alpha1.BackupObject{}}
	ends := r.clock.Now().Add(findTime)
	without, imageless, unread := 0, 0, []error(nil)
	defer func() {
		if without > 0 {
			warning.AddWarning(ctx, "", fmt.Sprintf("%d backups have no manifest, such as Velero's, and were not searched", without))
		}
		if imageless > 0 {
			warning.AddWarning(ctx, "", fmt.Sprintf("%d backups do not say the images of all workloads, since an earlier version made them or the workloads are too large, and could not be searched completely", imageless))
		}
		if len(unread) > 0 {
			warning.AddWarning(ctx, "", fmt.Sprintf("%d backups could not be searched: %v", len(unread), unread[0]))
		}
	}()
	for len(backups) > 0 {
		some := backups[:min(findAtOnce, len(backups))]
		for i, of := range r.readAll(ctx, s, some) {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if of.without {
				without++
			}
			if of.imageless {
				imageless++
			}
			if of.err != nil {
				unread = append(unread, of.err)
			}
			room := s.limit - len(result.Items)
			result.Items = append(result.Items, of.rows[:min(room, len(of.rows))]...)
			switch {
			case len(of.rows) > room || of.more:
				last := min(room, len(of.rows)) - 1
				result.Continue = s.token(some[i], nil)
				if last >= 0 {
					result.Continue = s.token(some[i], of.keys[last])
				} else if s.from != nil && s.from.compareTo(some[i]) == 0 {
					result.Continue = s.token(some[i], s.from.After)
				}
				return result, nil
			case len(result.Items) == s.limit && i+1 < len(backups):
				result.Continue = s.token(backups[i+1], nil)
				return result, nil
			}
		}
		backups = backups[len(some):]
		if len(backups) > 0 && r.clock.Now().After(ends) {
			result.Continue = s.token(backups[0], nil)
			return result, nil
		}
	}
	if len(result.Items) == 0 && len(unread) > 0 && s.from == nil {
		return nil, unread[0]
	}
	return result, nil
}

func (r *FindREST) readAll(ctx context.Context, s *search, backups []*v1alpha1.Backup) []found {
	ctx, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
	all := make([]found, len(backups))
	var group errgroup.Group
	for i, backup := range backups {
		group.Go(func() error {
			select {
			case r.reads <- struct{}{}:
				defer func() { <-r.reads }()
				all[i] = r.read(ctx, s, backup)
			case <-ctx.Done():
				all[i].err = apierrors.NewTooManyRequests("other searches are under way: try again", 1)
			}
			return nil
		})
	}
	_ = group.Wait() // each has its own error
	return all
}

func (r *FindREST) read(ctx context.Context, s *search, backup *v1alpha1.Backup) found {
	location, storeName, digests, ok := r.contents.Stored(backup)
	if !ok {
		return found{}
	}
	answer := func(err error) found {
		if errors.Is(err, store.ErrNotFound) {
			return found{without: true}
		}
		if ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", store.ErrUnavailable, err)
		}
		return found{err: r.contents.Streams.Explain(ctx, what(backup, "manifest"), location, err)}
	}
	from, done, err := r.contents.Streams.Stores.Use(ctx, location)
	if err != nil {
		return answer(fmt.Errorf("%w: %w", store.ErrUnavailable, err))
	}
	defer done()
	in := stored.Backup{Store: from, StoreName: storeName, ManifestDigest: digests.Manifest, Encryption: backup.Status.Encryption, Keys: r.contents.decryption}
	index, err := in.Index(ctx)
	if err != nil {
		return answer(err)
	}
	reader, err := r.contents.reader(ctx, backup, "manifest")
	if err != nil {
		return found{err: err}
	}
	reader.former.location, reader.former.from, reader.former.index = location, in, index
	var after []string
	if s.from != nil && s.from.compareTo(backup) == 0 {
		after = s.from.After
	}
	var result found
	for item, err := range reader.readable(ctx, s.of(s.items(ctx, index))) {
		if err != nil {
			return answer(err)
		}
		if s.image != "" && len(item.Images) == 0 {
			result.imageless = result.imageless || manifest.HasImages(schema.GroupKind{Group: item.APIGroup, Kind: item.KindName})
			continue
		}
		if s.image != "" && !slices.ContainsFunc(item.Images.List(), func(image string) bool { return manifest.MatchesImage(image, s.image) }) {
			continue
		}
		key := []string{item.GroupKind(), item.Namespace + "/" + item.Name}
		if len(after) == 2 && slices.Compare(key, after) <= 0 {
			continue
		}
		if len(result.rows) == s.limit {
			result.more = true
			break
		}
		result.rows, result.keys = append(result.rows, rowOf(backup, item)), append(result.keys, key)
	}
	return result
}

// items returns the items of the kind, by default of all kinds with images, or one that is named in full.
func (s *search) items(ctx context.Context, index *manifest.Index) manifest.Sequence {
	kinds := index.KindsWithImages()
	if s.kind != "" {
		kinds = kindsOf(index, s.kind)
	}
	if s.name == "" || s.namespace == nil {
		return index.Read(ctx, kinds...)
	}
	return func(yield func(*manifest.Item, error) bool) {
		for _, kind := range kinds {
			item, err := index.Find(ctx, kind, *s.namespace, s.name)
			if (item != nil || err != nil) && (!yield(item, err) || err != nil) {
				return
			}
		}
	}
}

func rowOf(backup *v1alpha1.Backup, item *manifest.Item) v1alpha1.BackupObject {
	apiVersion := strings.TrimPrefix(item.APIGroup+"/"+item.APIVersion, "/")
	return v1alpha1.BackupObject{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "BackupObject"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: backup.Namespace, Name: strings.Join([]string{backup.Name, item.KindName, item.Namespace, item.Name}, ":"),
			Labels: item.Labels, CreationTimestamp: *taken(backup),
		},
		Spec: v1alpha1.BackupObjectSpec{
			APIVersion: apiVersion, Kind: item.KindName, Namespace: item.Namespace, Name: item.Name, UID: types.UID(item.UID),
			Size: item.Size, SHA256: item.SHA256, Reason: item.Reason, Images: item.Images.List(),
			Backup: backup.Name, BackupUID: backup.UID, BackupPhase: backup.Status.Phase, BackupTimestamp: *taken(backup),
		},
	}
}
