// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package object says what an object of a backup becomes in a restore: whether it is
// restored at all (Rules.Skip), what is created of it (Rules.Desired), and what that means
// for one that exists (Compare). It computes on objects that others read and write.
//
// Of an object's metadata the name, the namespace, the labels, the annotations and the
// owners are restored; all else is the server's. In particular:
//
//   - generateName is left out: with it, a creation that meets an object of the name says
//     that the server ran out of time.
//   - managedFields are left out: a creation can't have them.
//   - Finalizers are left out: whoever owns one adds it when it sees the object, and if its
//     owner is not there, nobody could ever delete the object. Those that Kubernetes does
//     not add by itself are named in a warning.
//   - Owners get the uids that they have now. One that does not exist is left out, with a
//     warning: an object all of whose owners are unknown is collected as garbage.
//
// The order is: reset, what the kind asks for, the user's modifiers, which see the
// namespaces of the backup, then the mapping of namespaces.
package object
