// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package binaries builds what a lab runs, from Go modules and nothing else.
// A stamp file remembers from what each program was built, so building again
// costs nothing until a version, a source or the Go release changes.
package binaries

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// Programs are the names under which the one Kubernetes binary is called.
var Programs = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubectl", "kubelet"}

// Builder builds into one folder.
type Builder struct {
	Source string    // the folder of the lab's module
	Bin    string    // where the programs go
	Out    io.Writer // gets one line per step, for people
	// Kubernetes is the version to build, as 1.37.2: that of go.mod if empty, or
	// another one that has a file kubernetes-VERSION.mod.
	Kubernetes string
}

// target is one program to build.
type target struct {
	name    string
	folder  string // its module, below Builder.Source
	pkg     string // its package, in go build's words
	modfile string // used in place of go.mod, unless empty
	ldflags string
	sources []string // what it is built from, below Builder.Source; the stamp covers them
	notice  string
}

var requirement = regexp.MustCompile(`(?m)^\tk8s\.io/kubernetes v(\S+)$`)

// kubernetes is all of the release that the builder is to build. The programs have to be
// told their version, since a module build doesn't know.
func (b Builder) kubernetes() (version string, t target, err error) {
	mod, err := os.ReadFile(filepath.Join(b.Source, "go.mod"))
	if err != nil {
		return "", target{}, err
	}
	required := requirement.FindSubmatch(mod)
	if required == nil {
		return "", target{}, fmt.Errorf("go.mod in %s does not require k8s.io/kubernetes", b.Source)
	}
	newest := string(required[1])
	others, err := filepath.Glob(filepath.Join(b.Source, "kubernetes-*.mod"))
	if err != nil {
		return "", target{}, err
	}
	versions := []string{newest}
	for _, other := range others {
		versions = append(versions, strings.TrimSuffix(strings.TrimPrefix(filepath.Base(other), "kubernetes-"), ".mod"))
	}
	version = cmp.Or(strings.TrimPrefix(b.Kubernetes, "v"), newest)
	if !slices.Contains(versions, version) {
		return "", target{}, fmt.Errorf("version %s of Kubernetes does not build here: choose one of %s", version, strings.Join(versions, ", "))
	}
	module := "go"
	if version != newest {
		module = "kubernetes-" + version
	}
	t = target{
		name:    "kube",
		folder:  ".",
		pkg:     "./cmd/kube",
		modfile: module + ".mod",
		ldflags: "-s -w",
		sources: []string{module + ".mod", module + ".sum", "cmd/kube/main.go"},
		notice:  "etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubelet, kube-proxy and kubectl of Kubernetes " + version,
	}
	parts := strings.Split(version, ".")
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		t.ldflags += fmt.Sprintf(" -X %[1]s.gitVersion=v%[2]s -X %[1]s.gitMajor=%[3]s -X %[1]s.gitMinor=%[4]s", pkg, version, parts[0], parts[1])
	}
	return version, t, nil
}

var pause = target{
	name:    "pause",
	folder:  ".",
	pkg:     "./cmd/pause",
	ldflags: "-s -w",
	sources: []string{"go.mod", "cmd/pause/main.go"},
	notice:  "the process of a pod's sandbox",
}

var s3 = target{
	name:    "versitygw",
	folder:  "s3gw",
	pkg:     "github.com/versity/versitygw/cmd/versitygw",
	ldflags: "-s -w",
	sources: []string{"s3gw/go.mod", "s3gw/go.sum"},
	notice:  "an S3 server",
}

var csi = target{
	name:    "csi",
	folder:  ".",
	pkg:     "./cmd/csi",
	ldflags: "-s -w",
	sources: []string{"go.mod", "go.sum", "cmd/csi/main.go", "cmd/csi/storage.go", "cmd/csi/controller.go", "cmd/csi/faults.go"},
	notice:  "a driver of the Container Storage Interface",
}

// CSI builds the driver of volumes.
func (b Builder) CSI(ctx context.Context) error { return b.build(ctx, csi) }

// The modules of the programs that ask a driver for volumes and snapshots, and of the definitions.
const (
	Snapshotter     = "github.com/kubernetes-csi/external-snapshotter/v8"
	SnapshotClients = "github.com/kubernetes-csi/external-snapshotter/client/v8"
	Provisioner     = "github.com/kubernetes-csi/external-provisioner/v6"
)

// snapshots is the folder of the module that requires them.
const snapshots = "snapshots"

// Sidecars builds snapshot-controller, csi-snapshotter and csi-provisioner. They are a module of
// their own, since they need another release of Kubernetes's modules.
func (b Builder) Sidecars(ctx context.Context) error {
	for _, pkg := range []string{Snapshotter + "/cmd/snapshot-controller", Snapshotter + "/cmd/csi-snapshotter", Provisioner + "/cmd/csi-provisioner"} {
		err := b.build(ctx, target{
			name: path.Base(pkg), folder: snapshots, pkg: pkg, ldflags: "-s -w",
			sources: []string{snapshots + "/go.mod", snapshots + "/go.sum"},
			notice:  "of the snapshots of a lab",
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// SnapshotModule returns the folder of one of the sidecars' modules.
func (b Builder) SnapshotModule(ctx context.Context, module string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module)
	cmd.Dir, cmd.Env = filepath.Join(b.Source, snapshots), append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("find the module %s: %w", module, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// All builds what every lab without real nodes may start: Kubernetes and the S3 server.
func (b Builder) All(ctx context.Context) error {
	if err := b.Kube(ctx); err != nil {
		return err
	}
	return b.S3(ctx)
}

// S3 builds the S3 server. It is a module of its own, whose requirements must
// not change those that Kubernetes is built with.
func (b Builder) S3(ctx context.Context) error { return b.build(ctx, s3) }

// Kube builds etcd, every Kubernetes program, and the pause program, in the folder
// kubernetes-VERSION, beside those of other versions. Links in Bin lead to the one built last.
func (b Builder) Kube(ctx context.Context) error {
	version, kube, err := b.kubernetes()
	if err != nil {
		return err
	}
	name := "kubernetes-" + version
	release := b
	release.Bin = filepath.Join(b.Bin, name)
	for _, t := range []target{kube, pause} {
		if err := release.build(ctx, t); err != nil {
			return err
		}
	}
	for _, program := range Programs {
		if err := errors.Join(link(kube.name, release.Bin, program), link(filepath.Join(name, kube.name), b.Bin, program)); err != nil {
			return err
		}
	}
	return link(filepath.Join(name, pause.name), b.Bin, pause.name)
}

// link makes a symbolic link in a folder, in place of what has its name.
func link(to, folder, name string) error {
	path := filepath.Join(folder, name)
	if old, err := os.Readlink(path); err == nil && old == to {
		return nil
	}
	dir, err := os.MkdirTemp(folder, ".link-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
		return err
	}
	return os.Rename(filepath.Join(dir, name), path)
}

// Missing returns an error that names the first program that bin lacks.
func Missing(bin string, names ...string) error {
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(bin, name)); err != nil {
			return fmt.Errorf("%s is not in %s; run `lab build --bin %s` first", name, bin, bin)
		}
	}
	return nil
}

// FindSource returns the folder of the lab's module: the working directory, or
// hack/lab in it or in a folder above it.
func FindSource() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		for _, candidate := range []string{dir, filepath.Join(dir, "hack", "lab")} {
			if _, err := os.Stat(filepath.Join(candidate, "cmd", "kube", "main.go")); err == nil {
				return candidate, nil
			}
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("the lab's source (hack/lab) is not in this folder nor above it; run the command in the repository, or name it with --source")
		}
	}
}

func (b Builder) build(ctx context.Context, t target) error {
	goTool, err := exec.LookPath("go")
	if err != nil {
		return errors.New("building the lab needs the go command, which is not on the PATH; install Go 1.26 or later, see https://go.dev/doc/install")
	}
	stamp, err := b.stamp(ctx, goTool, t)
	if err != nil {
		return err
	}
	binary := filepath.Join(b.Bin, t.name)
	stampFile := filepath.Join(b.Bin, t.name+".stamp")
	if old, err := os.ReadFile(stampFile); err == nil && string(old) == stamp {
		if _, err := os.Stat(binary); err == nil {
			fmt.Fprintf(b.Out, "%s is up to date\n", binary)
			return nil
		}
	}
	if err := os.MkdirAll(b.Bin, 0o755); err != nil {
		return err
	}
	fmt.Fprintf(b.Out, "building %s: %s\n", t.name, t.notice)
	start := time.Now()
	goBuild := func(flag, output string) *exec.Cmd {
		// Nobody debugs these programs, which saves a fourteenth of the time. Go's own
		// packages are compiled as in other programs, and so once for all of them.
		args := []string{"build", flag, "-gcflags=all=-dwarf=false", "-gcflags=std=", "-ldflags", t.ldflags, "-o", output}
		if t.modfile != "" {
			args = append(args, "-modfile="+t.modfile)
		}
		cmd := exec.CommandContext(ctx, goTool, append(args, t.pkg)...)
		cmd.Dir = filepath.Join(b.Source, t.folder)
		// Without cgo the programs are static: they run in images and need no C compiler.
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
		return cmd
	}
	// What would be done, one command a line; it downloads the modules too.
	plan, err := goBuild("-n", binary).CombinedOutput()
	if err != nil {
		return fmt.Errorf("build %s: %w\n%s", t.name, err, plan)
	}
	packages := bytes.Count(plan, []byte("/compile -o "))
	fmt.Fprintf(b.Out, "%s has %d packages to compile, which takes about %s on %d CPUs\n", t.name, packages, estimate(packages), runtime.NumCPU())
	// The new binary is renamed over the old one, so that a running lab keeps its own. Its
	// folder has a unique name: several processes may build the same program at once.
	dir, err := os.MkdirTemp(b.Bin, "."+t.name+"-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	built := filepath.Join(dir, t.name)
	if err := b.run(goBuild("-v", built), t.name, packages, start); err != nil {
		return err
	}
	if err := os.Rename(built, binary); err != nil {
		return err
	}
	fmt.Fprintf(b.Out, "built %s in %s\n", binary, time.Since(start).Round(time.Second))
	return os.WriteFile(stampFile, []byte(stamp), 0o644)
}

// perPackage is what a CPU takes to compile one package and to link its share, in
// the mean over those of Kubernetes.
const perPackage = 200 * time.Millisecond

// estimate is how long this machine takes, if it has nothing else to do.
func estimate(packages int) time.Duration {
	return max(10*time.Second, (time.Duration(packages) * perPackage / time.Duration(runtime.NumCPU())).Round(10*time.Second))
}

// run runs a build that names each package which it compiles, and says every half
// minute how far it is.
func (b Builder) run(cmd *exec.Cmd, name string, packages int, start time.Time) error {
	var output progress
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	tick := time.NewTicker(30 * time.Second)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			if err != nil {
				return fmt.Errorf("build %s: %w\n%s", name, err, output.rest())
			}
			return nil
		case <-tick.C:
			fmt.Fprintf(b.Out, "%s: %d of %d packages after %s\n", name, output.packages(), packages, time.Since(start).Round(time.Second))
		}
	}
}

// progress is what go build -v prints: the names of packages, each in a line, and
// whatever else there is to say.
type progress struct {
	mu    sync.Mutex
	bytes []byte
}

// Write implements io.Writer.
func (p *progress) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bytes = append(p.bytes, b...)
	return len(b), nil
}

func (p *progress) packages() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	count := 0
	for line := range bytes.Lines(p.bytes) {
		if isPackage(line) {
			count++
		}
	}
	return count
}

// rest is what is not the name of a package.
func (p *progress) rest() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	var rest []byte
	for line := range bytes.Lines(p.bytes) {
		if !isPackage(line) {
			rest = append(rest, line...)
		}
	}
	return rest
}

func isPackage(line []byte) bool { return !bytes.ContainsRune(line, ' ') }

// stamp is a hash over everything that decides what a target becomes.
func (b Builder) stamp(ctx context.Context, goTool string, t target) (string, error) {
	h := sha256.New()
	version := exec.CommandContext(ctx, goTool, "env", "GOVERSION", "GOOS", "GOARCH")
	version.Dir = filepath.Join(b.Source, t.folder)
	env, err := version.Output()
	if err != nil {
		return "", fmt.Errorf("go env: %w", err)
	}
	fmt.Fprintf(h, "%s%s\n%s\n", env, t.pkg, t.ldflags)
	for _, name := range slices.Sorted(slices.Values(t.sources)) {
		content, err := os.ReadFile(filepath.Join(b.Source, name))
		if err != nil {
			return "", fmt.Errorf("source of %s: %w", t.name, err)
		}
		fmt.Fprintf(h, "%s %x\n", name, sha256.Sum256(content))
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
