// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package logstore serves API objects out of one in-memory event log, with the
// full semantics of k8s.io/apiserver/pkg/storage.Interface: consistent lists,
// paging, exact versions, watches that resume without a gap, bookmarks and
// WatchList. Nothing is written to a disk or to etcd.
//
// A Log holds the objects of one resource. Projectors write it through Apply,
// Remove and Replace, which commit only differences; clients read it through
// storage.Interface. Since list and watch read the same log, they can't disagree.
//
// What a Log guarantees:
//
//  1. A resourceVersion is a decimal number that grows with every event and is
//     never shared by two events, of one log or of two logs of the same resource.
//     A log serves in terms, each of which begins, by Begin, above every version that
//     any log issued in a term before: pkg/lease lets one log at a time serve,
//     and keeps in its Lease what the next one has to stay above. It is the time in
//     units of 2^-20 s since 1970, plus the number of events since, hence
//     (epoch seconds << 20) + counter, as long as the clocks of the replicas agree
//     and no term has more than 2^20 events per second on average; else it is more. The
//     numbers stay below 2^53 until 2242. Births alone, which also count so, don't
//     tell logs apart that live at once: of two that are born a millisecond apart, one
//     issues the other's first version with its 1,049th event.
//     What has not changed in a term is shown with the version that the term began at,
//     so that no object looks older than at the replica before.
//  2. A watch from a version that this log never issued, or no longer remembers,
//     ends with 410 Expired, whether that version lies in the past or in the
//     future; so does a page whose continue token is of such a version, with a
//     token that goes on at the current one. A list of exactly a forgotten version
//     is 410 too. A get or list that names a version of the future is answered as
//     Kubernetes does: 504 with the cause ResourceVersionTooLarge.
//  3. A watcher receives every event of its scope once and in order, or 410. A
//     slow watcher blocks nobody and loses nothing silently: it falls off the log.
//  4. Nothing that is there in part pretends to be whole. Until Open, clients are
//     answered 429 with Retry-After. Between Open and SetReady, a get finds what is
//     there, and is answered 429 for what is not; a list that names no version, as
//     people's do, has what is there, and OnRead adds a warning; a list that names a
//     version of an earlier log, or 0, as informers' do, is answered 429, so that
//     they keep what they know; and the bookmark that ends the initial events of a
//     watch is sent after SetReady. What arrives in between are events. From SetReady
//     on, an empty list means that there is nothing.
//  5. Stored objects are never changed; every object handed out is a deep copy.
//  6. What happened in the last 75 s is remembered, as long as it was fewer than
//     131,072 events and their objects take less than 128 MiB; older events, up to 5
//     minutes, as long as there are fewer than 32,768.
//  7. Lists and watches over all namespaces may see more of an object than requests within
//     its namespace, which include all gets. Projectors give both views. Requests of
//     either kind see one history: a change of the other view gives them no new version
//     and no event, and their selectors do not find it.
//
// The log has three parts: history (the ring of recent events), state (the
// current objects, with snapshots that cost nothing to take) and watchers, which
// hold a cursor into the history instead of a queue of their own.
package logstore
