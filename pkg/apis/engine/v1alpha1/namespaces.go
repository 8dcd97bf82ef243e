// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Each kind of Secret is in a namespace of its own beside the system namespace. A right to read
// Secrets is for a whole namespace, except for names known beforehand. So the reader of one kind
// reads neither another nor the TLS Secrets in the system namespace.

// AgentsNamespace returns the namespace of the node agents and their Leases. It is apart so that
// agents can't change the controllers' Leases.
func AgentsNamespace(system string) string { return system + "-agents" }

// CredentialsNamespace returns the namespace of the storage locations' credentials.
func CredentialsNamespace(system string) string { return system + "-locations" }

// KeysNamespace returns the namespace of the repositories' keys.
func KeysNamespace(system string) string { return system + "-repositories" }

// MaintenanceNamespace returns the namespace of the maintenance Jobs and the repositories' Leases.
func MaintenanceNamespace(system string) string { return system + "-maintenance" }

// OwnNamespaces returns Holdfast's own namespaces. Their objects decide with whose rights is
// written, and where backups are.
func OwnNamespaces(system string) []string {
	return []string{system, AgentsNamespace(system), CredentialsNamespace(system), KeysNamespace(system), MaintenanceNamespace(system), SnapshotsNamespace(system)}
}

// SnapshotsNamespace is the namespace of pods that hold snapshots of volumes while agents read them.
func SnapshotsNamespace(system string) string { return system + "-snapshots" }

// RestoreAccount is the ServiceAccount in the system namespace that the system namespace's restores
// write as.
const RestoreAccount = "holdfast-restore"

// RestoreUser is the user of RestoreAccount.
func RestoreUser(system string) string {
	return "system:serviceaccount:" + system + ":" + RestoreAccount
}
