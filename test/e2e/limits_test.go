// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// small are pods that do nothing, on each node as many, with an emptyDir each.
func small(t *testing.T, namespace string, onEach int) (all []workload) {
	t.Helper()
	lab.create(t, fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: %s}}", namespace))
	lab.must(t, "wait", "--for=create", "--timeout=60s", "-n", namespace, "serviceaccount/default")
	var pods strings.Builder
	for i := range onEach * len(nodes) {
		w := workload{namespace: namespace, pod: fmt.Sprintf("pod-%d", i), node: nodes[i%len(nodes)]}
		all = append(all, w)
		fmt.Fprintf(&pods, `apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: %s}
spec:
  terminationGracePeriodSeconds: 1
  automountServiceAccountToken: false
  nodeSelector: {kubernetes.io/hostname: %s}
  containers:
  - name: pause
    image: holdfast.io/lab-pause:dev
    volumeMounts: [{name: scratch, mountPath: /scratch}]
  volumes: [{name: scratch, emptyDir: {}}]
---
`, w.pod, w.namespace, w.node)
	}
	lab.create(t, pods.String())
	lab.must(t, "wait", "--for=condition=Ready", "--timeout=120s", "-n", namespace, "pods", "--all")
	return all
}

// scratch is the folder of a workload's emptyDir on this machine.
func (w workload) scratch(t *testing.T) string {
	t.Helper()
	return lab.path("nodes", w.node, "kubelet", "pods", string(w.live(t).UID), "volumes", "kubernetes.io~empty-dir", "scratch")
}

// fill writes files into a folder that no other one has, and returns their checksums.
func fill(t *testing.T, folder, seed string) map[string][32]byte {
	t.Helper()
	random := rand.NewChaCha8(sha256.Sum256([]byte(seed)))
	sums := map[string][32]byte{}
	for i := range 4 {
		content := make([]byte, 4<<20+i)
		_, _ = random.Read(content) // it never fails
		name := strconv.Itoa(i) + ".bin"
		if err := os.WriteFile(filepath.Join(folder, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
		sums[name] = sha256.Sum256(content)
	}
	// What takes time to read, and no space.
	zeros := make([]byte, 64<<20)
	if err := os.WriteFile(filepath.Join(folder, "zeros.img"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(folder, "zeros.img"), int64(len(zeros))); err != nil {
		t.Fatal(err)
	}
	sums["zeros.img"] = sha256.Sum256(zeros)
	return sums
}

// checksums are those of the files of a folder.
func checksums(t *testing.T, folder string) map[string][32]byte {
	t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	sums := map[string][32]byte{}
	for _, e := range entries {
		content, err := os.ReadFile(filepath.Join(folder, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		sums[e.Name()] = sha256.Sum256(content)
	}
	return sums
}

// move is an upload or a restore of a workload's volume.
type move struct {
	workload
	restore bool
}

func (m move) String() string {
	if m.restore {
		return fmt.Sprintf("restore of %s/%s", m.namespace, m.pod)
	}
	return fmt.Sprintf("backup of %s/%s", m.namespace, m.pod)
}

// observer is told by the kernel of all files of volumes that are opened and closed, in
// their order. What it sees of a move lies within the time in which the move has its slot.
// Records can't say that: a slot is free before the end is written, so for a moment more of
// them are InProgress than are moved.
type observer struct {
	inotify *os.File
	volumes map[int32]workload // by watch descriptor
	marks   string             // a folder that is watched as well
	passed  chan int           // numbers of the events of marks
	ended   chan error         // of the reader

	mu       sync.Mutex
	seen     int // how many events
	restored map[workload]bool
	spans    map[move]*span
}

// span is from the first to the last event of a move, by their numbers.
type span struct{ first, last int }

// observe begins to observe volumes. Until check is called, nobody but the agents is to
// open their files.
func observe(t *testing.T, folders map[workload]string) *observer {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	o := &observer{
		inotify: os.NewFile(uintptr(fd), "inotify"), volumes: map[int32]workload{}, marks: t.TempDir(),
		passed: make(chan int, 1), ended: make(chan error, 1), restored: map[workload]bool{}, spans: map[move]*span{},
	}
	t.Cleanup(func() { o.inotify.Close() })
	add := func(folder string, mask uint32) int32 {
		wd, err := unix.InotifyAddWatch(fd, folder, mask|unix.IN_ONLYDIR)
		if err != nil {
			t.Fatalf("watch %s: %v", folder, err)
		}
		return int32(wd)
	}
	for w, folder := range folders {
		o.volumes[add(folder, unix.IN_CREATE|unix.IN_OPEN|unix.IN_CLOSE)] = w
	}
	add(o.marks, unix.IN_CREATE)
	go func() { o.ended <- o.read() }()
	return o
}

func (o *observer) read() error {
	buffer := make([]byte, 1<<16)
	for {
		n, err := o.inotify.Read(buffer)
		if err != nil {
			return err
		}
		for rest := buffer[:n]; len(rest) > 0; {
			var event unix.InotifyEvent
			if _, err := binary.Decode(rest, binary.NativeEndian, &event); err != nil {
				return err
			}
			rest = rest[unix.SizeofInotifyEvent+event.Len:]
			if event.Mask&unix.IN_Q_OVERFLOW != 0 {
				return errors.New("the kernel has dropped events")
			}
			o.note(event)
		}
	}
}

func (o *observer) note(event unix.InotifyEvent) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.seen++
	w, ok := o.volumes[event.Wd]
	switch {
	case !ok:
		o.passed <- o.seen
		return
	case event.Mask&unix.IN_ISDIR != 0:
		return // someone looks which files there are
	case event.Mask&unix.IN_CREATE != 0:
		o.restored[w] = true // first it is backed up, then its files are lost
	}
	m := move{w, o.restored[w]}
	if o.spans[m] == nil {
		o.spans[m] = &span{first: o.seen}
	}
	o.spans[m].last = o.seen
}

// now is the number of an event that happens now.
func (o *observer) now(t *testing.T) int {
	t.Helper()
	mark, err := os.CreateTemp(o.marks, "")
	if err != nil {
		t.Fatal(err)
	}
	mark.Close()
	select {
	case at := <-o.passed:
		return at
	case err := <-o.ended:
		t.Fatalf("observing the volumes: %v", err)
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
	return 0
}

// regime are limits, and since when they hold.
type regime struct {
	limits  map[string]int    // by node
	rules   map[string]string // by node: what sets the limit
	ordered int               // when the ConfigMap or a label was changed
	known   int               // when all agents followed it
	running map[move]bool     // what ran at that time: it may go on
}

// check compares what was seen with the limits that were in force, when each volume was
// backed up and restored: never more, and as many at some time of each regime. It returns by node how often both were done at once.
func (o *observer) check(t *testing.T, regimes []regime) (mixed map[string]int) {
	t.Helper()
	o.now(t) // until here
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.spans) != 2*len(o.volumes) {
		t.Errorf("%d backups and restores of volumes were seen, want one of each for %d volumes", len(o.spans), len(o.volumes))
	}
	mixed = map[string]int{}
	type at struct {
		regime int
		node   string
	}
	begun, most := map[at]int{}, map[at]int{}
	for m, s := range o.spans {
		i := len(regimes) - 1
		for regimes[i].ordered > s.first {
			i--
		}
		limit := regimes[i].limits[m.node]
		if i > 0 && s.first < regimes[i].known {
			limit = max(limit, regimes[i-1].limits[m.node]) // the agent may not know yet
		}
		var moved []move
		for other, span := range o.spans {
			if other.node != m.node || span.first > s.first || span.last < s.first {
				continue
			}
			moved = append(moved, other)
			if other.restore != m.restore {
				mixed[m.node]++
			}
		}
		if regimes[i].running[m] {
			continue // it had begun when the limit fell
		}
		if len(moved) > limit {
			t.Errorf("%s moves %d volumes when the %s begins, and its limit is %d: %v", m.node, len(moved), m, limit, moved)
		}
		begun[at{i, m.node}]++
		most[at{i, m.node}] = max(most[at{i, m.node}], len(moved))
	}
	for i, r := range regimes {
		for _, node := range nodes {
			fmt.Printf("%s, limit %d by %s: %d volumes were begun, and %d were seen at once\n",
				node, r.limits[node], r.rules[node], begun[at{i, node}], most[at{i, node}])
			if most[at{i, node}] < r.limits[node] { // more wait all the time
				t.Errorf("%s has moved %d volumes at once at most under the limit %d by %s", node, most[at{i, node}], r.limits[node], r.rules[node])
			}
		}
	}
	return mixed
}

// moving are the moves of all nodes that are InProgress, by their records.
func moving(ctx context.Context) (map[move]bool, error) {
	uploads, err := lab.engine.EngineV1alpha1().VolumeUploads(system).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	restores, err := lab.engine.EngineV1alpha1().VolumeRestores(system).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	all := map[move]bool{}
	add := func(phase enginev1alpha1.VolumePhase, node string, pod enginev1alpha1.PodReference, restore bool) {
		if phase == enginev1alpha1.VolumePhaseInProgress {
			all[move{workload{namespace: pod.Namespace, pod: pod.Name, node: node}, restore}] = true
		}
	}
	for _, u := range uploads.Items {
		add(u.Status.Phase, u.Spec.Node, u.Spec.Pod, false)
	}
	for _, r := range restores.Items {
		add(r.Status.Phase, r.Spec.Node, r.Spec.Pod, true)
	}
	return all, nil
}

// on is how many of moves are on a node.
func on(node string, moves map[move]bool) (n int) {
	for m := range moves {
		if m.node == node {
			n++
		}
	}
	return n
}

// awaitLimits waits until kubectl get nodeagents shows the limits of a regime and what
// sets them, and that as many volumes are moved as the records say, and returns which. They
// are as many as the limit, or some more where the limit was higher before; or none when
// there is nothing to do. With the store paused none of them can end, so none is begun.
func awaitLimits(t *testing.T, r regime, before map[string]int, idle bool) (all map[move]bool) {
	t.Helper()
	eventually(t, "the agents follow their limits", func(ctx context.Context) error {
		rows := map[string]string{}
		var errs []error
		for _, node := range nodes {
			out, err := lab.kubectl(ctx, "", "get", "nodeagents", node, "--no-headers")
			errs = append(errs, err)
			rows[node] = strings.Join(strings.Fields(out), " ")
		}
		var err error
		all, err = moving(ctx) // after the agents have said how many
		errs = append(errs, err)
		for _, node := range nodes {
			n, least, most := on(node, all), r.limits[node], max(r.limits[node], before[node])
			if idle {
				least, most = 0, 0
			}
			if want := fmt.Sprintf("%s True %d %s %d ", node, r.limits[node], r.rules[node], n); !strings.HasPrefix(rows[node], want) || n < least || n > most {
				errs = append(errs, fmt.Errorf("it is %q, not %q with %d to %d volumes", rows[node], want, least, most))
			}
		}
		return errors.Join(errs...)
	})
	lab.mustShow(t, "get", "nodeagents")
	return all
}

// uploaded returns an error unless each node has uploaded volumes of a backup, as many as
// it may move at once.
func uploaded(ctx context.Context, backup string, limits map[string]int) error {
	work, err := volumeWork(ctx, backup)
	if err != nil {
		return err
	}
	completed := map[string]int{}
	for _, w := range work {
		if w.Status.Phase == enginev1alpha1.VolumePhaseCompleted {
			completed[w.Spec.Node]++
		}
	}
	for _, node := range nodes {
		if completed[node] < limits[node] {
			return fmt.Errorf("%s has uploaded %d volumes", node, completed[node])
		}
	}
	return nil
}

// lose deletes the files of workloads, and returns the manifests of records that bring
// them back from a backup, and their names.
func lose(t *testing.T, backup string, all []workload, folders map[workload]string) (manifests string, names []string) {
	t.Helper()
	for _, w := range all {
		name, manifest := volumeRestore(t, backup, w, "scratch")
		manifests, names = manifests+manifest, append(names, name)
		files, err := os.ReadDir(folders[w])
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if err := os.Remove(filepath.Join(folders[w], file.Name())); err != nil {
				t.Fatal(err)
			}
		}
	}
	return manifests, names
}

const limitsConfigMap = "holdfast-node-agent"

// configure writes the ConfigMap of the agents: how many volumes the first node moves at
// once, and how many those that are large.
func configure(t *testing.T, first, large int) {
	t.Helper()
	if _, err := lab.kubectl(t.Context(), fmt.Sprintf(`apiVersion: v1
kind: ConfigMap
metadata: {name: %s, namespace: holdfast}
data:
  config.json: |
    {"loadConcurrency": {"globalConfig": 3, "perNodeConfig": [
      {"nodeSelector": {"matchLabels": {"kubernetes.io/hostname": %q}}, "number": %d},
      {"nodeSelector": {"matchExpressions": [{"key": "size", "operator": "In", "values": ["large"]}]}, "number": %d}]}}
`, limitsConfigMap, nodes[0], first, large), "apply", "--server-side", "-f", "-"); err != nil {
		t.Fatal(err)
	}
}

// TestNodeLimits: a node moves as many volumes at once as its limit says and never more,
// backups and restores together, while the ConfigMap and the nodes' labels change. A limit
// that falls interrupts nothing.
func TestNodeLimits(t *testing.T) {
	t.Cleanup(func() {
		for _, command := range []string{
			"delete configmap -n holdfast --ignore-not-found " + limitsConfigMap,
			"label node --all size-",
			"delete namespace --ignore-not-found --wait=false reef cove",
		} {
			// The test's own context has ended.
			if _, err := lab.kubectl(context.Background(), "", strings.Fields(command)...); err != nil {
				t.Error(err)
			}
		}
	})
	step("Twenty pods on each node, with files in volumes")
	reef, cove := small(t, "reef", 12), small(t, "cove", 8)
	all := slices.Concat(reef, cove)
	folders, before := map[workload]string{}, map[workload]map[string][32]byte{}
	for _, w := range all {
		folders[w] = w.scratch(t)
		before[w] = fill(t, folders[w], w.namespace+w.pod)
	}
	observed := observe(t, folders)
	here, there := nodes[0], nodes[1]
	var regimes []regime
	// follow changes the limits, and returns when the agents follow them.
	follow := func(r regime, change func()) {
		t.Helper()
		var limits map[string]int
		idle := len(regimes) == 0
		if !idle {
			limits = regimes[len(regimes)-1].limits
		}
		r.ordered = observed.now(t)
		change()
		r.running = awaitLimits(t, r, limits, idle)
		r.known = observed.now(t)
		regimes = append(regimes, r)
		for _, node := range nodes {
			if !idle && limits[node] > r.limits[node] && on(node, r.running) == r.limits[node] {
				t.Errorf("%s moves no more than %d volumes, want what it has begun to go on", node, r.limits[node])
			}
		}
	}

	step("One node moves one volume at once, the other one three")
	one := regime{limits: map[string]int{here: 1, there: 3}, rules: map[string]string{here: "perNodeConfig[0]", there: "perNodeConfig[1]"}}
	follow(one, func() {
		lab.must(t, "label", "node", there, "size=large")
		configure(t, 1, 3)
	})
	lab.create(t, backup("reef", "reef"))
	resume := lab.pauseStore(t, "volumes are uploaded", func(ctx context.Context) error { return uploaded(ctx, "reef", one.limits) })
	awaitLimits(t, one, nil, false)

	step("Amid a backup, the ConfigMap says three and one")
	two := regime{limits: map[string]int{here: 3, there: 1}, rules: one.rules}
	follow(two, func() { configure(t, 3, 1) })
	resume()
	awaitEnd(t, v1alpha1.BackupPhaseCompleted, "reef")

	step("Amid restores and another backup, the nodes get other labels")
	restores, names := lose(t, "reef", reef, folders)
	lab.create(t, backup("cove", "cove"))
	resume = lab.pauseStore(t, "volumes are uploaded", func(ctx context.Context) error { return uploaded(ctx, "cove", two.limits) })
	lab.create(t, restores)
	// Of two rules the smaller one counts, and without any the number for all nodes.
	three := regime{limits: map[string]int{here: 1, there: 3}, rules: map[string]string{here: "perNodeConfig[1]", there: "globalConfig"}}
	follow(three, func() {
		lab.must(t, "label", "node", there, "size-")
		lab.must(t, "label", "node", here, "size=large")
	})
	resume()
	awaitRestored(t, names...)
	awaitEnd(t, v1alpha1.BackupPhaseCompleted, "cove")
	restores, names = lose(t, "cove", cove, folders)
	lab.create(t, restores)
	awaitRestored(t, names...)

	step("What was seen, and the files that came back")
	if mixed := observed.check(t, regimes); mixed[there] == 0 {
		t.Errorf("%s has never moved a volume of a backup and one of a restore at once", there)
	}
	for _, w := range all {
		if got := checksums(t, folders[w]); !maps.Equal(got, before[w]) {
			t.Errorf("the files of %s/%s differ: there are %d, want %d", w.namespace, w.pod, len(got), len(before[w]))
		}
	}
	fmt.Printf("the files of %d volumes are as before\n", len(all))

	step("Without the ConfigMap each node moves one")
	lab.must(t, "delete", "configmap", "-n", system, limitsConfigMap)
	awaitLimits(t, regime{limits: map[string]int{here: 1, there: 1}, rules: map[string]string{here: "default", there: "default"}}, nil, true)
}
