// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/encryption"
	"github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/pkg/registry/streamed"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/stored"
)

// objectAnnotation says in the audit log which object of a backup was read.
const objectAnnotation = "objects.holdfast.io/read"

// maxNamedKinds bounds the reported kinds of one name.
const maxNamedKinds = 10

var secretsResource = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}

// Manifest returns backups/manifest: the backup's items in the namespaces in which the reader has the same right.
// Cluster-scoped items take the right in all namespaces. Secrets take the right to get Secrets there, since an
// item has the checksum of its object.
func (c *Contents) Manifest() *streamed.REST {
	return &streamed.REST{
		Streams:    c.Streams,
		Object:     &v1alpha1.Backup{},
		Parameters: []string{"format", "kind", "namespace", "name", "labelSelector", "limit"},
		Find: func(ctx context.Context, name string, parameters url.Values) (*streamed.Answer, error) {
			asked, err := parseFilter(parameters)
			if err != nil {
				return nil, err
			}
			backup, answer, from, err := c.held(ctx, name, "manifest")
			if err != nil {
				return nil, err
			}
			reader, err := c.reader(ctx, backup, "manifest")
			if err != nil {
				return nil, err
			}
			if all, err := reader.mayReadIn(ctx, metav1.NamespaceAll); err != nil {
				return nil, err
			} else if !all {
				warning.AddWarning(ctx, "", "what is shown is what you may read: of other namespaces than those where you may get backups/manifest, and of the cluster's scope, nothing is")
			}
			answer.ContentType = "application/json"
			if asked.lines {
				answer.ContentType = "application/x-ndjson"
			}
			answer.Write = func(ctx context.Context, location store.Ranger, to io.Writer) error {
				from.Store = location
				reader.former.location, reader.former.from = answer.Location, from
				items, err := asked.items(ctx, from)
				if err != nil {
					return err
				}
				return undecryptable(name, asked.write(to, reader.readable(ctx, items)))
			}
			return answer, nil
		},
	}
}

// Objects returns backups/objects: the stored JSON of one object. It takes the same right in the object's
// namespace, and the right to get the object there.
func (c *Contents) Objects() *streamed.REST {
	return &streamed.REST{
		Streams:    c.Streams,
		Object:     &v1alpha1.Backup{},
		Parameters: []string{"kind", "namespace", "name"},
		Find: func(ctx context.Context, name string, parameters url.Values) (*streamed.Answer, error) {
			kind, namespace, object := parameters.Get("kind"), parameters.Get("namespace"), parameters.Get("name")
			if kind == "" || object == "" {
				return nil, apierrors.NewBadRequest("the parameters kind and name say which object is meant, and namespace for one in a namespace: ?kind=Deployment&namespace=shop&name=web")
			}
			backup, answer, from, err := c.held(ctx, name, "objects")
			if err != nil {
				return nil, err
			}
			reader, err := c.reader(ctx, backup, "objects")
			if err != nil {
				return nil, err
			}
			if may, err := reader.mayReadIn(ctx, namespace); err != nil || !may {
				return nil, reader.forbidden(reader.of(namespace), err)
			}
			answer.What = fmt.Sprintf("%s %q of the backup %q", kind, strings.TrimPrefix(namespace+"/"+object, "/"), name)
			answer.ContentType = "application/json"
			answer.Write = func(ctx context.Context, location store.Ranger, to io.Writer) error {
				from.Store = location
				reader.former.location, reader.former.from = answer.Location, from
				if may, err := reader.mayReadOf(ctx, namespace); err != nil || !may {
					return reader.formerOwner(namespace, err)
				}
				content, err := reader.object(ctx, from, kind, namespace, object)
				if err != nil {
					return undecryptable(name, err)
				}
				_, err = to.Write(content)
				return err
			}
			return answer, nil
		},
	}
}

// held returns a backup that can be restored, and so holds objects. Its place has no store yet.
func (c *Contents) held(ctx context.Context, name, subresource string) (*v1alpha1.Backup, *streamed.Answer, stored.Backup, error) {
	backup, err := c.ending().Find(ctx, name, subresource, nil)
	if err != nil {
		return nil, nil, stored.Backup{}, err
	}
	switch backup.Status.Phase {
	case v1alpha1.BackupPhaseCompleted, v1alpha1.BackupPhasePartiallyFailed:
	default:
		return nil, nil, stored.Backup{}, streamed.NotFound(fmt.Sprintf("the backup %q has no %s: it is %s, and holds no objects that could be restored", name, subresource, backup.Status.Phase))
	}
	answer, storeName, digests, err := c.answer(backup, subresource)
	return backup, answer, stored.Backup{StoreName: storeName, ManifestDigest: digests.Manifest, Encryption: backup.Status.Encryption, Keys: c.decryption}, err
}

// decryption returns the keys of encrypted backups, or an API error.
func (c *Contents) decryption(ctx context.Context) (encryption.Keys, error) {
	if c.Decryption == nil {
		return encryption.Keys{}, nil
	}
	keys, err := c.Decryption(ctx)
	if err != nil {
		reason := ""
		if c.Streams.Stores.MayKnow(ctx) {
			reason = ": " + err.Error()
		}
		return keys, apierrors.NewServiceUnavailable("the keys of encrypted backups can't be read at the moment" + reason)
	}
	return keys, nil
}

// undecryptable returns an API error if no key decrypts the backup, else err.
func undecryptable(name string, err error) error {
	if !errors.Is(err, encryption.ErrNoKey) {
		return err
	}
	return apierrors.NewConflict(schema.GroupResource{Group: resource.Group, Resource: resource.Resource}, name, err)
}

type reader struct {
	user.Info
	authorizer  authorizer.Authorizer
	subresource string
	// own is the backup's namespace, whose right to the subresource was checked before. system names everybody's
	// backups in records, so its contents take the right to all namespaces.
	own, system string
	may         map[schema.GroupVersionResource]map[string]bool // the answers, by resource and namespace
	// former knows which of the backup's namespaces are present ones; present has its answers.
	former  predecessors
	present map[string]bool
}

func (c *Contents) reader(ctx context.Context, backup *v1alpha1.Backup, subresource string) (*reader, error) {
	requester, ok := genericapirequest.UserFrom(ctx)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("the request has no user"))
	}
	kind := c.Backups.Kind.(*kind)
	return &reader{
		Info: requester, authorizer: kind.authorizer, subresource: subresource, own: backup.Namespace, system: kind.systemNamespace,
		may:    map[schema.GroupVersionResource]map[string]bool{},
		former: predecessors{judge: c.Judge, backup: backup}, present: map[string]bool{},
	}, nil
}

// of returns the attributes of the right to a namespace's contents.
func (r *reader) of(namespace string) authorizer.AttributesRecord {
	return authorizer.AttributesRecord{
		User: r.Info, Verb: "get", ResourceRequest: true, Namespace: namespace, Subresource: r.subresource,
		APIGroup: resource.Group, APIVersion: v1alpha1.SchemeGroupVersion.Version, Resource: resource.Resource,
	}
}

// mayReadIn reports whether the reader may know a namespace's contents or, if empty, all contents.
func (r *reader) mayReadIn(ctx context.Context, namespace string) (bool, error) {
	switch namespace {
	case r.system:
		namespace = metav1.NamespaceAll
	case r.own:
		return true, nil
	}
	return r.once(ctx, v1alpha1.SchemeGroupVersion.WithResource(resource.Resource), r.of(namespace))
}

// once asks for each right once: in all namespaces first.
func (r *reader) once(ctx context.Context, about schema.GroupVersionResource, attributes authorizer.AttributesRecord) (bool, error) {
	if r.may[about] == nil {
		r.may[about] = map[string]bool{}
	}
	for _, namespace := range slices.Compact([]string{metav1.NamespaceAll, attributes.Namespace}) {
		may, known := r.may[about][namespace]
		if !known {
			attributes.Namespace = namespace
			decision, _, err := r.authorizer.Authorize(ctx, attributes)
			if err != nil && decision != authorizer.DecisionAllow {
				return false, apierrors.NewInternalError(fmt.Errorf("checking what %q may read: %w", r.GetName(), err))
			}
			may = decision == authorizer.DecisionAllow
			r.may[about][namespace] = may
		}
		if may {
			return true, nil
		}
	}
	return false, nil
}

func (r *reader) readable(ctx context.Context, items manifest.Sequence) manifest.Sequence {
	return func(yield func(*manifest.Item, error) bool) {
		for item, err := range items {
			if err == nil {
				var may bool
				if may, err = r.mayKnow(ctx, item); err == nil && !may {
					continue
				}
			}
			if !yield(item, err) || err != nil {
				return
			}
		}
	}
}

func (r *reader) mayKnow(ctx context.Context, item *manifest.Item) (bool, error) {
	may, err := r.mayReadOf(ctx, item.Namespace)
	if err != nil || !may {
		return may, err
	}
	return r.mayKnowOf(ctx, item)
}

func (r *reader) mayKnowOf(ctx context.Context, item *manifest.Item) (bool, error) {
	if item.APIGroup != secretsResource.Group || item.Resource != secretsResource.Resource && item.KindName != "Secret" {
		return true, nil
	}
	return r.once(ctx, secretsResource, authorizer.AttributesRecord{
		User: r.Info, Verb: "get", ResourceRequest: true, Namespace: item.Namespace,
		APIVersion: secretsResource.Version, Resource: secretsResource.Resource,
	})
}

func (r *reader) object(ctx context.Context, from stored.Backup, kind, namespace, name string) ([]byte, error) {
	index, err := from.Index(ctx)
	if errors.Is(err, store.ErrNotFound) {
		return r.scanned(ctx, from, kind, namespace, name)
	}
	if err != nil {
		return nil, err
	}
	kinds := kindsOf(index, kind)
	if len(kinds) > 1 {
		return nil, ambiguous(kind, kinds)
	}
	if len(kinds) == 0 {
		return nil, noObject(kind, namespace, name)
	}
	item, err := index.Find(ctx, kinds[0], namespace, name)
	switch {
	case err != nil:
		return nil, err
	case item == nil:
		return nil, noObject(kind, namespace, name)
	}
	if err := r.authorizeObject(ctx, item); err != nil {
		return nil, err
	}
	return from.Object(ctx, item)
}

// scanned is object for a backup without a manifest. It reads the whole tarball unless the kind is given in full:
// another kind may have that name.
func (r *reader) scanned(ctx context.Context, from stored.Backup, kind, namespace, name string) ([]byte, error) {
	var kinds []string
	var item *manifest.Item
	var content []byte
	for object, err := range from.Scan(ctx) {
		if err != nil {
			return nil, err
		}
		groupKind := object.GroupKind()
		if !isKind(groupKind, kind) {
			continue
		}
		if !slices.Contains(kinds, groupKind) {
			kinds = append(kinds, groupKind)
		}
		if item == nil && object.Namespace == namespace && object.Name == name {
			item, content = object.Item, bytes.Clone(object.Content)
		}
		if len(kinds) == maxNamedKinds || item != nil && groupKind == kind {
			break
		}
	}
	if len(kinds) > 1 {
		slices.Sort(kinds)
		return nil, ambiguous(kind, kinds)
	}
	if item == nil {
		return nil, noObject(kind, namespace, name)
	}
	if err := r.authorizeObject(ctx, item); err != nil {
		return nil, err
	}
	return content, nil
}

func ambiguous(kind string, kinds []string) error {
	return apierrors.NewBadRequest(fmt.Sprintf("the kind %q is one of %s: say which", kind, strings.Join(kinds, ", ")))
}

func noObject(kind, namespace, name string) error {
	return streamed.NotFound(fmt.Sprintf("the backup holds no %s %q", kind, strings.TrimPrefix(namespace+"/"+name, "/")))
}

// authorizeObject fails if the reader may not get the object, or else notes the reading in the audit log.
func (r *reader) authorizeObject(ctx context.Context, item *manifest.Item) error {
	wanted := authorizer.AttributesRecord{
		User: r.Info, Verb: "get", ResourceRequest: true, Namespace: item.Namespace, Name: item.Name,
		APIGroup: item.APIGroup, APIVersion: item.APIVersion, Resource: item.Resource,
	}
	if decision, _, err := r.authorizer.Authorize(ctx, wanted); decision != authorizer.DecisionAllow {
		return r.forbidden(wanted, err)
	}
	audit.AddAuditAnnotation(ctx, objectAnnotation, item.String())
	return nil
}

// formerOwner returns the error that the reader's namespace is not the backup's.
func (r *reader) formerOwner(namespace string, err error) error {
	if err != nil {
		return err
	}
	return apierrors.NewForbidden(schema.GroupResource{Group: resource.Group, Resource: resource.Resource + "/" + r.subresource}, "",
		fmt.Errorf("the backup is of another namespace %q than the present one, which was made anew since: its contents are shown to those who may get backups/%s in all namespaces", namespace, r.subresource))
}

func (r *reader) forbidden(wanted authorizer.AttributesRecord, err error) error {
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("checking what %q may read: %w", r.GetName(), err))
	}
	what := schema.GroupResource{Group: wanted.APIGroup, Resource: strings.TrimSuffix(wanted.Resource+"/"+wanted.Subresource, "/")}
	where := "outside of namespaces"
	if wanted.Namespace != "" {
		where = fmt.Sprintf("in the namespace %q", wanted.Namespace)
	}
	return apierrors.NewForbidden(what, wanted.Name, fmt.Errorf("user %q may not get %s %s, which is needed to read it from a backup", r.GetName(), what, where))
}

func kindsOf(index *manifest.Index, word string) []string {
	return slices.DeleteFunc(index.Kinds(), func(groupKind string) bool { return !isKind(groupKind, word) })
}

// isKind reports whether a word means a kind: its name or usual plural, perhaps with the group as in
// Deployment.apps, or with group and version as in the manifest.
func isKind(groupKind, word string) bool {
	parts := strings.Split(groupKind, "/")
	kind := parts[len(parts)-1]
	group := strings.Join(parts[:max(0, len(parts)-2)], "/")
	plural, _ := meta.UnsafeGuessKindToResource(schema.GroupVersionKind{Kind: kind})
	return strings.EqualFold(word, kind) || strings.EqualFold(word, kind+"."+group) || strings.EqualFold(word, plural.Resource) ||
		strings.EqualFold(word, plural.Resource+"."+group) || word == groupKind
}

type filter struct {
	lines      bool
	kind, name string
	namespace  *string // nil for all, empty for the cluster's scope
	labels     labels.Selector
	limit      int
}

func parseFilter(parameters url.Values) (*filter, error) {
	f := &filter{kind: parameters.Get("kind"), name: parameters.Get("name"), labels: labels.Everything()}
	switch value := parameters.Get("format"); value {
	case "", "json":
	case "ndjson":
		f.lines = true
	default:
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the parameter format is %q: it must be json or ndjson", value))
	}
	if parameters.Has("namespace") {
		f.namespace = new(parameters.Get("namespace"))
	}
	var err error
	if f.labels, err = labels.Parse(parameters.Get("labelSelector")); err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the parameter labelSelector: %v", err))
	}
	if value := parameters.Get("limit"); value != "" {
		if f.limit, err = strconv.Atoi(value); err != nil || f.limit < 1 {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("the parameter limit is %q: it must be a number, one at least", value))
		}
	}
	return f, nil
}

// items returns the items that match the filter, apart from its limit.
func (f *filter) items(ctx context.Context, from stored.Backup) (manifest.Sequence, error) {
	if f.kind == "" && f.limit == 0 && from.ManifestDigest != "" {
		return f.of(from.Items(ctx)), nil
	}
	index, err := from.Index(ctx)
	var all manifest.Sequence
	switch {
	case errors.Is(err, store.ErrNotFound):
		all = func(yield func(*manifest.Item, error) bool) {
			for object, err := range from.Scan(ctx) {
				if !yield(object.Item, err) {
					return
				}
			}
		}
	case err != nil:
		return nil, err
	case f.kind == "":
		all = index.Read(ctx, index.Kinds()...)
	default:
		all = index.Read(ctx, kindsOf(index, f.kind)...)
	}
	return f.of(all), nil
}

func (f *filter) of(all manifest.Sequence) manifest.Sequence {
	return func(yield func(*manifest.Item, error) bool) {
		for item, err := range all {
			if err == nil && !f.matches(item) {
				continue
			}
			if !yield(item, err) || err != nil {
				return
			}
		}
	}
}

func (f *filter) matches(item *manifest.Item) bool {
	return (f.kind == "" || isKind(item.GroupKind(), f.kind)) && (f.namespace == nil || *f.namespace == item.Namespace) && (f.name == "" || f.name == item.Name) &&
		f.labels.Matches(labels.Set(item.Labels))
}

// write writes items as they come. If it fails before the first one, it has written nothing.
func (f *filter) write(to io.Writer, items manifest.Sequence) error {
	out := &pieces{to: to}
	begin, separator, end := fmt.Sprintf("{\"version\":%d,\"items\":[\n", manifest.Version), ",\n", "\n]}\n"
	if f.lines {
		begin, separator, end = "", "\n", "\n"
	}
	out.text(begin)
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	count := 0
	for item, err := range items {
		if err != nil {
			return err
		}
		if count > 0 {
			out.text(separator)
		}
		if err := out.item(encoder, item); err != nil {
			return err
		}
		if count++; count == f.limit {
			break
		}
	}
	if count > 0 || !f.lines {
		out.text(end)
	}
	return out.flush()
}

// pieces gathers output for few writes.
type pieces struct {
	to     io.Writer
	buffer []byte
}

const pieceBytes = 64 << 10

func (p *pieces) Write(b []byte) (int, error) {
	p.buffer = append(p.buffer, b...)
	return len(b), nil
}

func (p *pieces) text(s string) { p.buffer = append(p.buffer, s...) }

// item adds an item without the end of its line.
func (p *pieces) item(encoder *json.Encoder, item *manifest.Item) error {
	if err := encoder.Encode(item); err != nil {
		return err
	}
	p.buffer = p.buffer[:len(p.buffer)-1]
	if len(p.buffer) < pieceBytes {
		return nil
	}
	return p.flush()
}

func (p *pieces) flush() error {
	if len(p.buffer) == 0 {
		return nil
	}
	_, err := p.to.Write(p.buffer)
	p.buffer = p.buffer[:0]
	return err
}
