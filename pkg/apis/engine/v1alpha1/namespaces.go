// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Each kind of Secret has its own namespace. A right to read Secrets covers a whole namespace,
// except for names known beforehand. So the reader of one kind reads neither another nor the system
// namespace's TLS Secrets.

// AgentsNamespace returns the namespace of node agents and their Leases, so that agents can't
// change controllers' Leases.
func AgentsNamespace(system string) string { return system + "-agents" }

// CredentialsNamespace returns the namespace of the storage locations' credentials.
func CredentialsNamespace(system string) string { return system + "-locations" }

// KeysNamespace returns the namespace of the repositories' keys.
func KeysNamespace(system string) string { return system + "-repositories" }

// MaintenanceNamespace returns the namespace of the maintenance Jobs and the repositories' Leases.
func MaintenanceNamespace(system string) string { return system + "-maintenance" }

// OwnNamespaces returns Holdfast's own namespaces. Their objects decide where backups are, and with
// whose rights Holdfast writes.
func OwnNamespaces(system string) []string {
	return []string{system, AgentsNamespace(system), CredentialsNamespace(system), KeysNamespace(system), MaintenanceNamespace(system), SnapshotsNamespace(system)}
}

// SnapshotsNamespace is the namespace of pods that hold volume snapshots while agents read them.
func SnapshotsNamespace(system string) string { return system + "-snapshots" }

// RestoreAccount is the system namespace's ServiceAccount that its restores write as.
const RestoreAccount = "holdfast-restore"

// RestoreUser is the user of RestoreAccount.
func RestoreUser(system string) string {
	return "system:serviceaccount:" + system + ":" + RestoreAccount
}
