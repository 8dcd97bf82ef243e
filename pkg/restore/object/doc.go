// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package object computes what a restore does with an object: whether it is restored (Rules.Skip),
// what is created (Rules.Desired), and the changes of an existing one (Compare).
//
// Of metadata, only name, namespace, labels, annotations and owners are restored:
//
//   - generateName would hide that an object of the name exists;
//   - managedFields can't be set by a creation;
//   - a finalizer is added again by its owner, without which the object could never be deleted. A
//     warning names finalizers that are not Kubernetes' own;
//   - owners get their present uids. A missing one is left out with a warning, since Kubernetes
//     deletes an object of unknown owners.
//
// The order is: reset, rules of the kind, the user's modifiers, which see the backup's namespaces,
// mapping of namespaces.
package object
