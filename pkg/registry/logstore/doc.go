// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package logstore serves API objects from one in-memory event log for each resource, with the
// semantics of k8s.io/apiserver/pkg/storage.Interface. Projectors write a log, and clients read it.
//
// Guarantees:
//
//  1. A resourceVersion is a decimal number that grows with every event. No two events of a
//     resource share one. A log serves in terms. Each term begins, by Begin, above every version
//     issued before; pkg/lease keeps that version in its Lease. A version is the time since
//     1970 in units of 2^-20 s, plus the number of events since. It stays below 2^53 until 2242. An
//     object that has not changed in a term has the version of the term's beginning. So no object
//     looks older than at the replica before.
//  2. A watch from a version that this log never issued, or has forgotten, ends with 410 Expired. A
//     page with such a continue token gets 410 and a token that continues at the current version. A
//     list of exactly a forgotten version is 410. A get or list that names a future version gets
//     504 with the cause ResourceVersionTooLarge.
//  3. A watcher receives every event of its scope once and in order, or 410. A slow watcher blocks
//     no other, and loses nothing silently.
//  4. An incomplete log never looks complete. Until Open, each request gets 429 with Retry-After.
//     Between Open and SetReady, a get of an unknown object gets 429. A list without a version, as
//     a person's, gets the known objects, and OnRead adds a warning. A list with an earlier log's
//     version, or 0, as an informer's, gets 429. The bookmark that ends a watch's initial events is
//     sent after SetReady.
//  5. Stored objects never change; each object handed out is a deep copy.
//  6. The events of the last 75 s are remembered, up to 131,072 events and 128 MiB of objects.
//     Older events, up to 5 minutes, are remembered while there are fewer than 32,768.
//  7. Requests over all namespaces may see more of an object than requests within its namespace,
//     which include all gets. A change of one view is no event, and gives no new version, to
//     requests of the other kind. Their selectors don't find it.
package logstore
