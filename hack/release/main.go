// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Command release makes the files of a release out of programs that are built before: archives,
// their SBOMs, the chart, install.yaml, the manifest for krew, and the checksums of all with a
// signature. The same programs and the same tree make the same files.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

const (
	// home is where the files of a release are, each below its version.
	home = "https://github.com/holdfast-io/holdfast"
	// image is the image without its tag, and built is the tag of the manifests.
	image, built = "ghcr.io/holdfast-io/holdfast", "dev"
	plugin       = "kubectl-holdfast"
)

func main() {
	var r release
	flags := flag.NewFlagSet("release", flag.ExitOnError)
	flags.StringVar(&r.version, "version", "", "version of the release, such as v1.2.3")
	flags.StringVar(&r.programs, "programs", "", "folder with the programs, as NAME/OS/ARCHITECTURE/FILE")
	flags.StringVar(&r.man, "man", "", "folder with the plugin's man pages, as clidocs -man writes them")
	flags.StringVar(&r.tree, "tree", "../..", "folder of the source tree")
	flags.StringVar(&r.out, "out", "", "folder for the files, which must be empty")
	flags.StringVar(&r.key, "key", "", "file with the private key that signs the checksums: PEM, PKCS 8, ECDSA with P-256; without it nothing is signed")
	created := flags.Int64("created", 0, "time of the files, in seconds since 1970")
	_ = flags.Parse(os.Args[1:]) // it exits
	r.created = time.Unix(*created, 0).UTC()
	if err := r.write(); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// release is what the files are made of.
type release struct {
	version, programs, man, tree, out, key string
	created                                time.Time
}

var semantic = regexp.MustCompile(`^v(\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?)$`)

// program is one program for one platform.
type program struct{ name, os, architecture, file string }

// archive returns the file name of the program's archive.
func (p program) archive(version string) string {
	extension := ".tar.gz"
	if p.os == "windows" {
		extension = ".zip" // Windows opens nothing else by itself.
	}
	return strings.Join([]string{p.name, version, p.os, p.architecture}, "_") + extension
}

// write makes all files of the release.
func (r release) write() error {
	match := semantic.FindStringSubmatch(r.version)
	if match == nil {
		return fmt.Errorf("the version is %q, want one like v1.2.3: give it as make release VERSION=v1.2.3", r.version)
	}
	programs, err := r.find()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	if there, err := os.ReadDir(r.out); err != nil || len(there) > 0 {
		return errors.Join(err, fmt.Errorf("%s has %d files, and must be empty: remove it, or name another folder", r.out, len(there)))
	}
	license, err := os.ReadFile(filepath.Join(r.tree, "LICENSE"))
	if err != nil {
		return err
	}
	files := map[string][]byte{}
	for _, p := range programs {
		content, err := os.ReadFile(p.file)
		if err != nil {
			return err
		}
		members := []member{{path.Base(filepath.ToSlash(p.file)), 0o755, content}, {"LICENSE", 0o644, license}}
		if p.name == plugin && p.os != "windows" {
			extra, err := r.besides()
			if err != nil {
				return err
			}
			members = append(members, extra...)
		}
		name := p.archive(r.version)
		pack := packTar
		if p.os == "windows" {
			pack = packZip
		}
		if files[name], err = pack(members, r.created); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if files[name+".cdx.json"], err = sbom(p, content, r.version, r.created); err != nil {
			return fmt.Errorf("SBOM of %s: %w", p.file, err)
		}
	}
	if files["holdfast-"+match[1]+".tgz"], err = r.chart(match[1]); err != nil {
		return fmt.Errorf("chart: %w", err)
	}
	if files["install.yaml"], err = r.manifests(); err != nil {
		return fmt.Errorf("install.yaml: %w", err)
	}
	if files["alerts.yaml"], err = os.ReadFile(filepath.Join(r.tree, "artifacts/monitoring/alerts.yaml")); err != nil {
		return err
	}
	if files["holdfast.yaml"], err = krew(programs, files, r.version); err != nil {
		return fmt.Errorf("manifest for krew: %w", err)
	}
	files["SHA256SUMS"] = checksums(files)
	if r.key != "" {
		if files["SHA256SUMS.sig"], err = sign(r.key, files["SHA256SUMS"]); err != nil {
			return err
		}
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(r.out, name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// besides returns what the plugin's archives hold besides it, where there is a shell: the program by
// which kubectl completes its arguments, and the man pages.
func (r release) besides() ([]member, error) {
	const helper = "kubectl_complete-holdfast"
	content, err := os.ReadFile(filepath.Join(r.tree, "cmd", plugin, helper))
	if err != nil {
		return nil, err
	}
	members := []member{{helper, 0o755, content}}
	pages, err := filepath.Glob(filepath.Join(r.man, plugin+"*.1"))
	if err != nil {
		return nil, err
	}
	if r.man == "" || len(pages) == 0 {
		return nil, fmt.Errorf("the folder %q has no man pages of the plugin: write them by clidocs -man FOLDER, and name it with -man", r.man)
	}
	slices.Sort(pages)
	for _, page := range pages {
		if content, err = os.ReadFile(page); err != nil {
			return nil, err
		}
		members = append(members, member{"man/man1/" + filepath.Base(page), 0o644, content})
	}
	return members, nil
}

// find lists the programs, in the order of their paths.
func (r release) find() ([]program, error) {
	paths, err := filepath.Glob(filepath.Join(r.programs, "*", "*", "*", "*"))
	if err != nil {
		return nil, err
	}
	slices.Sort(paths)
	var programs []program
	for _, file := range paths {
		relative, err := filepath.Rel(r.programs, file)
		if err != nil {
			return nil, err
		}
		steps := strings.Split(filepath.ToSlash(relative), "/")
		programs = append(programs, program{name: steps[0], os: steps[1], architecture: steps[2], file: file})
	}
	if len(programs) == 0 {
		return nil, fmt.Errorf("%s has no programs: build them as NAME/OS/ARCHITECTURE/FILE", r.programs)
	}
	return programs, nil
}
