// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package backup executes one backup: everything between the moment its run is
// InProgress and the moment velero-backup.json is written. It knows nothing of
// queues and records: it gets a request and clients, and gives back an outcome.
//
// Objects are read page by page and go into the tarball in the store as they
// come, so memory follows the largest object, the names of all objects and some 77 bytes
// of manifest for each, never the size of the rest. Nor does that of the API server: see PageSizes.
// Only pods with pre hooks are held back: each is in memory, as its
// list brought it, until these have run and it was read once more, up to some 32 MiB of
// them. The volumes of pods are handed over when all pods are
// known, so that their upload goes on beside the reading. What can't be read is an
// error in the backup's results, and the rest goes on.
//
// # The fence
//
// A store has no transactions, and whoever writes to it may be paused for an hour
// between any two requests, be taken for dead, and go on; its requests may arrive
// after it has died. Other clusters may share the location. What is listed is whole
// all the same, by these steps, of which each decides by one conditional write:
//
//   - The folder has one owner. Its owner object, with the backup's uid, is created
//     before anything else and removed after all else; whoever finds another one there
//     has no place to write to. So two backups of one name never mix.
//   - Nothing is replaced. Each object is created under the condition that there is
//     none, so an object that this backup has written stays what it was; one that it
//     can't write, since there is one, is not published unless it has the same digest.
//   - The end is decided once: whoever creates velero-backup.json first, the process
//     that executes the backup or one that abandons it, has decided, and every later
//     attempt reads that decision. Abandon removes only after that, so what it removes
//     nobody will publish: a Create of Completed metadata that arrives late fails. A
//     tarball that arrives late lies in the folder of a Failed or Cancelled backup, and
//     goes with it.
//   - One attempt makes the backup. Before it may create velero-backup.json it creates the
//     copy of that under a name of its own; and a process that takes over creates something in
//     the place of that, or finds the copy and carries it through. So whoever was taken for
//     dead publishes nothing, however late it wakes, and what it has left is removed. What it
//     still writes is in the way of the one after it at the worst, which removes it, or fails.
//   - What is removed was listed before the folder was asked for its owner, and is
//     removed as that version or not at all (store.Remover). So a process that sleeps
//     before a removal removes nothing of a later backup of the name. No two backups
//     have an object of the same bytes: format.Mark.
//   - What agents save counts only if the list of volumes names it, which is stored before
//     the end is decided. A process that wakes up asks no agent for anything: liveness.Fence, by
//     which all clients of the controllers go (TestAPausedControllerSendsNothing). What it had asked for before may be saved after the end; nobody lists that, and the
//     maintenance removes it.
//
// What remains: the metadata of a process that slept, or a request of it that was on
// its way, from its last look at the owner until somebody else had ended its backup
// AND somebody had deleted that, too, so that no metadata is there any more that would
// hold it. Then a backup appears that was deleted. It is not taken for whole: its
// metadata names digests of objects that are gone, the list of volumes among them,
// which the catalogue reads anyway and finds missing. Deleting it again removes it, and
// only it, if the folder is another backup's by then; that one, if it was running, has
// lost its name, and fails. Likewise one object of a sleeping process may come to lie in
// an empty folder or in that of a running backup, which fails then. In a folder store a removal
// takes a file aside to see which one it is, and puts back what it does not mean: who creates
// the same key in that moment has it, and the object that was there, of a backup that runs,
// is gone, so that this backup fails. A store that ignores If-None-Match has none of these promises. Velero knows no owners and replaces metadata
// without looking: format.CopyKey.
package backup
