// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package requests

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/registry/recorded"
)

// maxBytes bounds roughly the list of backups in a record, for etcd.
const maxBytes = 1 << 20

// VolumeDeletionConfig is the configuration of the deletions.
type VolumeDeletionConfig struct {
	// Ready fails while the contents of the stores are unknown.
	Ready func() error
	// History returns the history of a BackupVolume, and its uid.
	History func(namespace, name string) ([]catalog.HistoryItem, types.UID)
	// Backup returns a backup as it is shown.
	Backup func(namespace, name string) (*v1alpha1.Backup, bool)
	// AllowsDeletion reports whether a location of another format allows deletion.
	AllowsDeletion func(location string) bool
	Changes        engineclient.BackupChangeInterface // the records
	Observe        func(*enginev1alpha1.BackupChange) // hides the targets of a new record
	Authorizer     authorizer.Authorizer
	Clock          clock.PassiveClock
	// SystemNamespace has the records. It has no limit: it is the administrator's.
	SystemNamespace string
	// Limit bounds a namespace's concurrent deletions; zero is no limit.
	Limit int
	Load  func(namespace string, coming sets.Set[string]) (records, unfinished int) // as in recorded.Quota
}

// recordsPerUnfinished bounds all records of a namespace, in multiples of its limit: finished ones stay for a day.
const recordsPerUnfinished = 10

// CauseTooManyDeletions is the cause of a refusal beyond the limit.
const CauseTooManyDeletions metav1.CauseType = "TooManyVolumeDeletions"

// deletion is the subresource of one resource. A POST deletes a volume's whole history, or one volume backup. One
// record for each location names the backups, which no replica lists any more. The controller backupchange carries
// it out.
//
// It takes the right to this subresource in the namespace that lists the volume, and to create backups/deletion in
// each other namespace. Other backups stay, and the answer counts them.
type deletion struct {
	VolumeDeletionConfig
	quota    recorded.Quota
	resource schema.GroupResource
	history  bool // a volume's whole history is deleted
	// items returns the named volume backups, and the uid of the named object.
	items func(ctx context.Context, namespace, name string) ([]catalog.HistoryItem, types.UID, error)
}

// NewHistoryDeletion serves backupvolumes/deletion.
func NewHistoryDeletion(config VolumeDeletionConfig) *recorded.Subresource {
	d := &deletion{VolumeDeletionConfig: config, resource: v1alpha1.Resource("backupvolumes"), history: true}
	d.items = func(_ context.Context, namespace, name string) ([]catalog.HistoryItem, types.UID, error) {
		items, uid := config.History(namespace, name)
		if len(items) == 0 {
			return nil, "", apierrors.NewNotFound(d.resource, name)
		}
		return items, uid, nil
	}
	return d.subresource("backupvolume")
}

// NewVolumeDeletion serves volumebackups/deletion. volumeBackups gets the volume backups as they are listed.
func NewVolumeDeletion(config VolumeDeletionConfig, volumeBackups rest.Getter) *recorded.Subresource {
	d := &deletion{VolumeDeletionConfig: config, resource: v1alpha1.Resource("volumebackups")}
	d.items = func(ctx context.Context, namespace, name string) ([]catalog.HistoryItem, types.UID, error) {
		found, err := volumeBackups.Get(ctx, name, &metav1.GetOptions{})
		if err != nil {
			return nil, "", err
		}
		items, _ := config.History(namespace, found.(*v1alpha1.VolumeBackup).Spec.VolumeName)
		for _, item := range items {
			if item.Listed.Name == name {
				return []catalog.HistoryItem{item}, item.UID, nil
			}
		}
		return nil, "", apierrors.NewNotFound(d.resource, name)
	}
	return d.subresource("volumebackup")
}

func (d *deletion) subresource(singular string) *recorded.Subresource {
	d.quota = recorded.Quota{
		Resource: d.resource, Cause: CauseTooManyDeletions, Factor: recordsPerUnfinished,
		Limit: func(namespace string) (limit int, flag string) {
			if namespace == d.SystemNamespace {
				return 0, ""
			}
			return d.VolumeDeletionConfig.Limit, "--volume-deletions-per-namespace"
		},
		Load:       d.Load,
		Unfinished: "%[1]d deletions of volumes of the namespace %[2]q are under way, this one would be %[3]d more, and at most %[4]d may be (%[5]s of the API server): wait until some are carried out",
		Records:    "there are %[1]d records of deletions of volumes of the namespace %[2]q, this would be %[3]d more, and at most %[4]d may be (%[6]d times %[5]s of the API server): they stay for a day. The whole history of a volume goes with one, by a POST to backupvolumes/NAME/deletion",
	}
	return &recorded.Subresource{Resource: d.resource, Singular: singular, Body: &v1alpha1.VolumeDeletion{}, Clock: d.Clock, Record: d.record}
}

func (d *deletion) record(ctx context.Context, request *recorded.Request) (string, error) {
	name, namespace := request.Name, genericapirequest.NamespaceValue(ctx)
	if err := d.Ready(); err != nil {
		return "", apierrors.NewTooManyRequests(fmt.Sprintf("what is to be deleted is not known yet: %v", err), 1)
	}
	items, uid, err := d.items(ctx, namespace, name)
	if err != nil {
		return "", err
	}
	if p := request.Body.(*v1alpha1.VolumeDeletion).Preconditions; p != nil && p.UID != "" && p.UID != uid {
		return "", d.conflict(name, fmt.Sprintf("its uid is %s, and the one that is to be deleted has %s", uid, p.UID))
	}
	chosen, err := d.choose(ctx, request.Requester, namespace, items)
	if err != nil {
		return "", err
	}
	if len(chosen.targets) == 0 {
		if chosen.forbidden == len(items) {
			return "", apierrors.NewForbidden(d.resource, name, fmt.Errorf("user %q may not delete the data of backups of other namespaces, which hold it: that needs the right to create backups.holdfast.io/deletion there", request.Requester.GetName()))
		}
		return "", d.conflict(name, strings.Join(chosen.stays(), "; "))
	}
	var records []*enginev1alpha1.BackupChange
	var names []string
	for _, targets := range chosen.byLocation() {
		record := &enginev1alpha1.BackupChange{
			ObjectMeta: metav1.ObjectMeta{Name: string(uuid.NewUUID()), Labels: map[string]string{enginev1alpha1.LabelDeletesVolumes: "true"}},
			Spec: enginev1alpha1.BackupChangeSpec{
				Ask: request.Ask, Namespace: items[0].Volume.Namespace, Volume: items[0].Volume.Name, ListedIn: namespace, History: d.history, Targets: targets,
			},
		}
		records, names = append(records, record), append(names, record.Name)
	}
	done, err := d.quota.Admit(namespace, name, names...)
	if err != nil {
		return "", err
	}
	defer done()
	for _, record := range records {
		record, err = d.Changes.Create(ctx, record, metav1.CreateOptions{DryRun: request.DryRun})
		switch {
		case err != nil:
			return "", recorded.NotRecorded(d.resource, "deletion", name, err) // for items that are still listed
		case len(request.DryRun) == 0:
			d.Observe(record)
		}
	}
	said := fmt.Sprintf("%d volume backups are deleted: their data goes with the maintenance of their repository", len(chosen.targets))
	if len(chosen.targets) == 1 {
		said = "the volume backup is deleted: its data goes with the maintenance of its repository"
	}
	if len(request.DryRun) > 0 {
		said = fmt.Sprintf("%d volume backups would be deleted", len(chosen.targets))
	}
	return strings.Join(append([]string{said}, chosen.stays()...), "; "), nil
}

type choice struct {
	targets []enginev1alpha1.BackupChangeTarget
	size    int
	// forbidden counts entries in backups of others, later the ones beyond one record's size.
	forbidden, later int
	refused          int // in backups that must not change; reasons has each reason once
	reasons          []string
}

// stays says which entries stay, and why.
func (c *choice) stays() (said []string) {
	if c.forbidden > 0 {
		said = append(said, fmt.Sprintf("%d stay in backups of other namespaces, which need the right to create backups.holdfast.io/deletion there", c.forbidden))
	}
	if c.refused > 0 {
		said = append(said, fmt.Sprintf("%d stay: %s", c.refused, strings.Join(c.reasons, "; ")))
	}
	if c.later > 0 {
		said = append(said, fmt.Sprintf("ask again for %d more, which one request can't hold", c.later))
	}
	return said
}

func (c *choice) refuse(why string) {
	c.refused++
	if len(c.reasons) < maxReasons && !slices.Contains(c.reasons, why) {
		c.reasons = append(c.reasons, why)
	}
}

// add adds a volume backup, unless one record can't hold it.
func (c *choice) add(item *catalog.HistoryItem) {
	size := 100 + len(item.Backup.Location) + len(item.Backup.StoreName) + len(item.Backup.UID) + len(item.BackupName)
	if len(c.targets) >= enginev1alpha1.MaxBackupChangeTargets || c.size+size > maxBytes {
		c.later++
		return
	}
	c.size += size
	c.targets = append(c.targets, enginev1alpha1.BackupChangeTarget{
		StorageLocation: item.Backup.Location, StoreName: item.Backup.StoreName, UID: item.Backup.UID, BackupName: item.BackupName, Repeat: item.Volume.Repeat,
	})
}

// byLocation returns the targets by location: a store without an answer holds up only its own.
func (c *choice) byLocation() [][]enginev1alpha1.BackupChangeTarget {
	of := map[string][]enginev1alpha1.BackupChangeTarget{}
	for _, target := range c.targets {
		of[target.StorageLocation] = append(of[target.StorageLocation], target)
	}
	var targets [][]enginev1alpha1.BackupChangeTarget
	for _, location := range slices.Sorted(maps.Keys(of)) {
		targets = append(targets, of[location])
	}
	return targets
}

const maxReasons = 10

func (d *deletion) choose(ctx context.Context, requester user.Info, namespace string, items []catalog.HistoryItem) (*choice, error) {
	allowed := map[string]bool{namespace: true}
	chosen := &choice{}
	for i := range items {
		item := &items[i]
		if item.Of == nil && !d.AllowsDeletion(item.Backup.Location) {
			chosen.refuse("the store of the storage location " + item.Backup.Location + " is Longhorn's, and only read unless spec.longhorn.allowDeletion says otherwise")
			continue
		}
		if item.Of == nil {
			chosen.add(item)
			continue
		}
		of := types.NamespacedName{Namespace: item.Of.Namespace, Name: item.Of.Name}
		may, known := allowed[of.Namespace]
		if !known {
			decision, _, err := d.Authorizer.Authorize(ctx, authorizer.AttributesRecord{
				User: requester, Verb: "create", Namespace: of.Namespace, ResourceRequest: true,
				APIGroup: v1alpha1.GroupName, APIVersion: v1alpha1.SchemeGroupVersion.Version, Resource: "backups", Subresource: "deletion",
			})
			if err != nil && decision != authorizer.DecisionAllow {
				return nil, apierrors.NewInternalError(fmt.Errorf("checking whether %q may delete backups: %w", requester.GetName(), err))
			}
			may = decision == authorizer.DecisionAllow
			allowed[of.Namespace] = may
		}
		if !may {
			chosen.forbidden++
			continue
		}
		backup := item.Of
		if shown, ok := d.Backup(of.Namespace, of.Name); ok && shown.UID == backup.UID {
			backup = shown
		}
		why := whyNot(backup)
		if why == "" && item.InStorage {
			why = fmt.Sprintf("the backup %s/%s keeps it as a snapshot in the storage of its volume, which is deleted with the backup", backup.Namespace, backup.Name)
		}
		if why != "" {
			chosen.refuse(why)
			continue
		}
		chosen.add(item)
	}
	return chosen, nil
}

// whyNot returns why nothing may be deleted from a backup, or "".
func whyNot(backup *v1alpha1.Backup) string {
	status := &backup.Status
	name := fmt.Sprintf("the backup %s/%s ", backup.Namespace, backup.Name)
	switch {
	case status.Phase == v1alpha1.BackupPhaseUnreadable:
		return name + "can't be read"
	case status.Phase == v1alpha1.BackupPhaseDeleting:
		return name + "is being deleted"
	case !status.Phase.Ended():
		return name + "has not ended"
	case status.Origin == nil || status.Origin.Trust != v1alpha1.BackupTrustOwn:
		return name + "is not one of this cluster's own, which alone are changed here"
	case status.Hold != nil:
		return name + "is held by " + status.Hold.Requester + " since " + status.Hold.Timestamp.UTC().Format(time.RFC3339) + ": release it first"
	}
	return ""
}

// conflict refuses a request because of the state.
func (d *deletion) conflict(name, why string) error {
	return recorded.Conflict(d.resource, name, v1alpha1.StatusReasonBackupState, fmt.Sprintf("%s %q: nothing was deleted: %s", d.resource.Resource, name, why))
}
