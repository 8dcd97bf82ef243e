// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backuprun

import (
	"fmt"

	"github.com/holdfast-io/holdfast/pkg/format"
)

func textOf(volume *format.Volume) string {
	if volume.ClaimName != "" {
		return fmt.Sprintf("the data of claim %s in %s", volume.ClaimName, volume.Pod.Namespace)
	}
	return fmt.Sprintf("volume %s of pod %s in %s", volume.Name, volume.Pod.Name, volume.Pod.Namespace)
}

func (v *volumes) noteWaits() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, u := range v.uploads {
		if u.status.Phase.Done() {
			u.wait.End()
			continue
		}
		said := ""
		if u.status.Message != "" {
			said = ": it " + u.status.Message
		}
		switch _, absent := v.absence(u); {
		case u.preparing:
			u.wait.Set(textOf(u.volume) + said)
		case absent:
			u.wait.Set(fmt.Sprintf("%s: nothing is heard of the agent of node %s", textOf(u.volume), u.node))
		case u.begun.IsZero():
			u.wait.Set(fmt.Sprintf("%s: the agent of node %s has not begun%s", textOf(u.volume), u.node, said))
		default:
			u.wait.Set(fmt.Sprintf("%s, which the agent of node %s reads", textOf(u.volume), u.node))
		}
	}
}
