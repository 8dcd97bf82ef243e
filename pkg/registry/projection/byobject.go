// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package projection

import (
	"context"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	"k8s.io/utils/lru"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/pkg/queue"
	"github.com/holdfast-io/holdfast/pkg/queue/standin"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/stored"
)

const (
	// maxQuestions is for how many of those that wait, from the head of the queue on, manifests
	// are compared, and maxBlockers how many others each of them may wait for.
	maxQuestions, maxBlockers = 100, 10
	// maxVerdicts is how many comparisons are remembered: all that can be asked for.
	maxVerdicts = maxQuestions * maxBlockers
	// compareTimeout is how long a comparison may take.
	compareTimeout = time.Minute
	// retryInterval is how long one that failed is not tried again.
	retryInterval = 10 * time.Minute
	// compareInterval is for how long manifests are compared, and then are not.
	compareInterval = time.Second
)

// byObject is what the queue says of objects: that a backup would not overlap by object those
// that it waits for. Only people read it. Projector.mu guards it, but for asked.
type byObject struct {
	questions []question
	// notes are the answers, by key, of those that would not.
	notes map[string]string
	// asked wakes who answers.
	asked chan struct{}
}

// question is whether a backup would overlap by object those that it waits for.
type question struct {
	key string
	// namespace is where its entry is.
	namespace string
	// backups are the one that waits, and the others.
	backups []asked
}

// asked is a backup that waits or runs, and where it is shown.
type asked struct {
	namespace string
	spec      *v1alpha1.BackupSpec
}

// question is that of an entry, as it may be shown. There is none if it waits for a restore, for
// what is ahead of it, or for what its namespace may not know of: whoever may make backups there
// would learn by one after another what those of others hold.
func (q *publishedQueue) question(runs *runs, entry *queue.Entry) (question, bool) {
	switch {
	case entry.Class != queue.Backup || entry.OtherBlockers.Sum() > 0 || len(entry.Blockers) > maxBlockers:
		return question{}, false
	case entry.Reason != v1alpha1.QueueReasonNamespaceOverlap && entry.Reason != v1alpha1.QueueReasonClusterScopeOverlap:
		return question{}, false
	}
	asking := question{}
	uids := []types.UID{entry.UID}
	for _, blocker := range entry.Blockers {
		uids = append(uids, blocker.UID)
	}
	for _, uid := range uids {
		run, ok := q.planner.Run(uid).(*enginev1alpha1.BackupRun)
		if !ok {
			return question{}, false
		}
		of := asked{runs.key(run).Namespace, &run.Spec.Backup}
		if len(asking.backups) == 0 {
			asking.namespace = of.namespace
		} else if of.namespace != asking.namespace && asking.namespace != runs.systemNamespace {
			return question{}, false
		}
		asking.backups = append(asking.backups, of)
		asking.key += of.namespace + "/" + string(uid) + " "
	}
	return asking, true
}

// ask replaces the questions.
func (o *byObject) ask(questions []question) {
	if !slices.EqualFunc(o.questions, questions, func(a, b question) bool { return a.key == b.key }) {
		o.questions = questions
		o.wake()
	}
}

func (o *byObject) wake() {
	select {
	case o.asked <- struct{}{}:
	default:
	}
}

// source is a stored backup, by what never changes of it.
type source struct {
	name                        types.NamespacedName
	uid                         types.UID
	location, storeName, digest string
}

// verdict is what came of a comparison.
type verdict struct {
	disjoint bool
	// failed is when it failed; else zero.
	failed time.Time
}

// answerer compares the manifests of stored backups, one pair at a time.
type answerer struct {
	*Projector
	// verdicts are the last ones, by pair.
	verdicts *lru.Cache
}

// runByObject answers the questions of the queue until ctx ends. A folder that hangs holds it up
// for as long as it does: what has been said stands, and nothing new is said.
func (p *Projector) runByObject(ctx context.Context) {
	a := &answerer{p, lru.New(maxVerdicts)}
	var retry <-chan time.Time // while nothing has failed, never
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.queue.byObject.asked:
		case <-retry:
			retry = nil
		}
		if failed := a.answer(ctx); failed && retry == nil {
			retry = p.Clock.After(retryInterval)
		}
		select {
		case <-ctx.Done():
			return
		case <-p.Clock.After(compareInterval):
		}
	}
}

// answer brings the notes up to date, as far as manifests have been compared, or can be within
// compareInterval. It reports whether one could not be read.
func (a *answerer) answer(ctx context.Context) (failed bool) {
	a.mu.Lock()
	questions := a.queue.byObject.questions
	a.mu.Unlock()
	kinds, sources := a.standIns(questions)
	notes, more, begin := map[string]string{}, false, a.Clock.Now()
next:
	for _, q := range questions {
		var by []source
		for _, of := range q.backups {
			s, ok := sources[kinds[of.spec]]
			if !ok || len(by) > 0 && s == by[0] {
				continue next
			}
			by = append(by, s)
		}
		names := []types.NamespacedName{by[0].name}
		for _, running := range by[1:] {
			v, known := a.verdict(by[0], running)
			if !known && a.Clock.Since(begin) < compareInterval {
				v, known = a.compare(ctx, by[0], running), true
			}
			more, failed = more || !known, failed || !v.failed.IsZero()
			if !known || !v.disjoint {
				continue next
			}
			names = append(names, running.name)
		}
		notes[q.key] = standin.Note(q.namespace, names)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if !maps.Equal(a.queue.byObject.notes, notes) {
		a.queue.byObject.notes = notes
		a.queue.wake()
	}
	if more {
		a.queue.byObject.wake()
	}
	return failed
}

// standIns are the kinds of the backups that questions are about, by their specs, and the
// stored backups with a manifest that stand in for these.
func (p *Projector) standIns(questions []question) (kinds map[*v1alpha1.BackupSpec]standin.Kind, sources map[standin.Kind]source) {
	kinds, sources = map[*v1alpha1.BackupSpec]standin.Kind{}, map[standin.Kind]source{}
	wanted, namespaces := sets.New[standin.Kind](), sets.New[string]()
	for _, q := range questions {
		for _, of := range q.backups {
			if _, known := kinds[of.spec]; !known {
				kinds[of.spec] = standin.KindOf(of.namespace, of.spec)
				wanted.Insert(kinds[of.spec])
				namespaces.Insert(of.namespace)
			}
		}
	}
	for namespace := range namespaces {
		for kind, backup := range standin.Newest(wanted, p.Backups.All(namespace)) {
			location, storeName, digests, ok := p.Stored(backup)
			if ok && digests.Manifest != "" {
				sources[kind] = source{nameOf(backup), backup.UID, location, storeName, digests.Manifest}
			}
		}
	}
	return kinds, sources
}

// pair is the same for two sources in whatever order.
func pair(one, other source) [2]source {
	if one.uid > other.uid {
		one, other = other, one
	}
	return [2]source{one, other}
}

// verdict is that of a former comparison, if there was one and it need not be tried again.
func (a *answerer) verdict(one, other source) (v verdict, known bool) {
	found, known := a.verdicts.Get(pair(one, other))
	if !known {
		return verdict{}, false
	}
	v = found.(verdict)
	return v, v.failed.IsZero() || a.Clock.Since(v.failed) < retryInterval
}

// compare compares two manifests, and remembers what came of it.
func (a *answerer) compare(ctx context.Context, one, other source) verdict {
	disjoint, err := a.disjoint(ctx, one, other)
	v := verdict{disjoint: disjoint}
	if err != nil {
		v = verdict{failed: a.Clock.Now()}
		klog.FromContext(ctx).V(2).Info("Could not compare what two backups hold", "backup", one.name, "other", other.name, "reason", store.Reason(err))
	}
	a.verdicts.Add(pair(one, other), v)
	return v
}

func (a *answerer) disjoint(ctx context.Context, one, other source) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, compareTimeout)
	defer cancel()
	var items [2]manifest.Sequence
	for i, s := range [...]source{one, other} {
		from, done, err := a.Use(ctx, s.location)
		if err != nil {
			return false, err
		}
		defer done()
		items[i] = stored.Backup{Store: from, StoreName: s.storeName, ManifestDigest: s.digest}.Items(ctx)
	}
	return standin.Disjoint(items[0], items[1])
}
