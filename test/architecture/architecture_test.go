// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package architecture tests the rules that keep the folders' meaning: which
// package may import which, and that every package says what it is.
package architecture

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/holdfast-io/holdfast/"

// rule forbids imports to the packages below a folder.
type rule struct {
	// of are folders of this module; a package below one of them is meant, unless it
	// is below one of except.
	of, except []string
	// forbidden are import paths, of this module when they begin with pkg/; packages
	// below them are meant too.
	forbidden []string
	// deep forbids indirect imports as well.
	deep bool
	why  string
}

var clients = []string{"k8s.io/client-go", "k8s.io/apiserver", "github.com/kopia/kopia", "gocloud.dev", "google.golang.org/api", "github.com/Azure/azure-sdk-for-go", "pkg/store"}

var rules = []rule{
	{
		of:        []string{"pkg/queue", "pkg/selection", "pkg/format", "pkg/hostpath", "pkg/loadconcurrency", "pkg/manifest", "pkg/identity", "pkg/catalog", "pkg/schedule", "pkg/restore/graph", "pkg/restore/object", "pkg/datapath/buzhash"},
		except:    []string{"pkg/catalog/refresh", "pkg/catalog/index"},
		forbidden: clients,
		deep:      true,
		why:       "the domain is pure: it computes on values that others read and write, so that it can be tested without them",
	},
	{
		of:        []string{"pkg/queue", "pkg/selection"},
		except:    []string{"pkg/queue/records"},
		forbidden: []string{"sync", "context", "log", "log/slog", "k8s.io/klog/v2", "os"},
		why:       "the queue is a function: it has no lock, goroutine, clock or logger of its own",
	},
	{
		of:        []string{"pkg/restore/source", "pkg/stored"},
		forbidden: []string{"k8s.io/client-go", "k8s.io/apiserver", "pkg/controllers", "pkg/generated"},
		deep:      true,
		why:       "a backup may be hostile: its reader has no client, so it can do nothing for it",
	},
	{
		of:        []string{"cmd", "pkg", "test"},
		except:    []string{"pkg/repository", "pkg/datapath"},
		forbidden: []string{"github.com/kopia/kopia"},
		why:       "only pkg/repository and pkg/datapath know Kopia, so that it can be upgraded in one place",
	},
	{
		of:        []string{"cmd", "pkg"},
		except:    []string{"pkg/store"},
		forbidden: []string{"gocloud.dev", "github.com/aws/aws-sdk-go-v2", "github.com/minio/minio-go", "github.com/kopia/kopia/repo/blob/s3", "google.golang.org/api", "cloud.google.com/go", "golang.org/x/oauth2", "github.com/Azure/azure-sdk-for-go"},
		why:       "only pkg/store knows how a store is reached, so that a repository is available when its location is",
	},
	{
		of:        []string{"pkg/apis"},
		except:    []string{"pkg/apis/holdfast/validation"},
		forbidden: []string{"pkg/backup", "pkg/catalog", "pkg/controllers", "pkg/datapath", "pkg/format", "pkg/generated", "pkg/queue", "pkg/registry", "pkg/repository", "pkg/selection", "pkg/store"},
		why:       "the API types are the vocabulary at the bottom: they import nothing of Holdfast above them",
	},
	{
		of:        []string{"pkg/backup", "pkg/catalog", "pkg/datapath", "pkg/encryption", "pkg/format", "pkg/location", "pkg/manifest", "pkg/queue", "pkg/recovery", "pkg/repository", "pkg/restore", "pkg/schedule", "pkg/selection", "pkg/store", "pkg/stored"},
		forbidden: []string{"pkg/apiserver", "pkg/controllers", "pkg/registry"},
		why:       "imports run downwards: the engine and the domain do not know the controllers and the API",
	},
	{
		of:        []string{"pkg/registry"},
		forbidden: []string{"pkg/apiserver", "pkg/backup", "pkg/controllers", "pkg/datapath", "pkg/repository"},
		why:       "the resources show what others do; they do nothing themselves",
	},
	{
		of:        []string{"pkg/controllers"},
		forbidden: []string{"pkg/apiserver", "pkg/registry"},
		why:       "the API server and the controllers share no memory, and work without each other",
	},
	{
		of:        []string{"pkg/controllers"},
		except:    []string{"pkg/controllers/repository", "pkg/controllers/volumework"},
		forbidden: []string{"pkg/repository", "pkg/datapath"},
		why:       "the controllers that run and delete backups have no memory for the indexes of repositories; pkg/volumefiles/reader opens them within its own bounds",
	},
	{
		of:        []string{"pkg/catalog/refresh", "pkg/catalog/index"},
		forbidden: []string{"pkg/repository", "pkg/datapath"},
		why:       "the catalogue reads backups' metadata and nothing else",
	},
	{
		of:        []string{"pkg/catalog/refresh", "pkg/catalog/index"},
		forbidden: []string{"k8s.io/client-go/kubernetes", "k8s.io/client-go/rest", "pkg/generated"},
		deep:      true,
		why:       "a store's content never becomes work: its reader has no client to write a record",
	},
	{
		of:        []string{"pkg/controllers"},
		forbidden: []string{"pkg/catalog"},
		deep:      true,
		why:       "a store's content never becomes work: the controllers act on records alone",
	},
	{
		of:        []string{"cmd", "pkg"},
		except:    []string{"pkg/encryption", "pkg/recovery"},
		forbidden: []string{"filippo.io/age"},
		why:       "only pkg/recovery knows how keys are encrypted, and pkg/encryption how backups are",
	},
	{
		of:        []string{"pkg/cli", "cmd/kubectl-holdfast"},
		forbidden: []string{"github.com/kopia/kopia", "gocloud.dev", "github.com/aws/aws-sdk-go-v2", "github.com/minio/minio-go", "google.golang.org/api", "cloud.google.com/go", "github.com/Azure/azure-sdk-for-go", "k8s.io/apiserver", "pkg/store", "pkg/location", "pkg/controllers", "pkg/registry"},
		deep:      true,
		why:       "the plugin is a thin client of the API: whatever it does, the API does, and no store need be reachable from its user's machine",
	},
	{
		of:        []string{"cmd"},
		forbidden: []string{"testing"},
		deep:      true,
		why:       "shipped programs hold no test helpers",
	},
}

// pkg is what the go command says of a package.
type pkg struct {
	ImportPath, Name, Doc              string
	Imports, Deps                      []string
	GoFiles, TestGoFiles, XTestGoFiles []string
}

func packages(t *testing.T) []pkg {
	t.Helper()
	command := exec.Command("go", "list", "-json=ImportPath,Name,Doc,Imports,Deps,GoFiles,TestGoFiles,XTestGoFiles", "./...")
	command.Dir = "../.."
	var stderr bytes.Buffer
	command.Stderr = &stderr
	output, err := command.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	var result []pkg
	for decoder := json.NewDecoder(bytes.NewReader(output)); ; {
		var p pkg
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			return result
		}
		if err != nil {
			t.Fatal(err)
		}
		result = append(result, p)
	}
}

// below reports whether an import path is one of the roots, or below one.
func below(path string, roots []string) bool {
	return slices.ContainsFunc(roots, func(root string) bool {
		if root == "cmd" || root == "test" || strings.HasPrefix(root, "pkg") {
			root = module + root
		}
		return path == root || strings.HasPrefix(path, root+"/")
	})
}

// Pitfall 9: readers of the stores can't write records, and the controllers read no
// catalogue.
func TestImportsRunDownwards(t *testing.T) {
	used := make([]bool, len(rules))
	for _, p := range packages(t) {
		for i, rule := range rules {
			if !below(p.ImportPath, rule.of) || below(p.ImportPath, rule.except) {
				continue
			}
			used[i] = true
			imports := p.Imports
			if rule.deep {
				imports = p.Deps
			}
			for _, imported := range imports {
				if below(imported, rule.forbidden) {
					t.Errorf("%s imports %s: %s", strings.TrimPrefix(p.ImportPath, module), imported, rule.why)
				}
			}
		}
	}
	for i, used := range used {
		if !used {
			t.Errorf("the rule for %v meets no package: correct its folders", rules[i].of)
		}
	}
}

func TestEveryPackageSaysWhatItIs(t *testing.T) {
	for _, p := range packages(t) {
		path := strings.TrimPrefix(p.ImportPath, module)
		if strings.HasPrefix(path, "pkg/generated/") || len(p.GoFiles) == 0 {
			continue
		}
		if p.Doc == "" {
			t.Errorf("%s has no package comment: say in one sentence what it promises", path)
		}
		for _, element := range strings.Split(path, "/") {
			if slices.Contains([]string{"util", "utils", "common", "helper", "helpers", "misc", "base"}, element) {
				t.Errorf("%s: the name %q says nothing of what the package provides", path, element)
			}
		}
	}
}

// TestExportedNamesAreDocumented: each exported declaration has a comment of its own, or is in a group
// that has one. The methods that the language and the standard library define need none.
func TestExportedNamesAreDocumented(t *testing.T) {
	known := []string{"Error", "Unwrap", "Is", "String"}
	for _, p := range packages(t) {
		path := strings.TrimPrefix(p.ImportPath, module)
		if strings.HasPrefix(path, "pkg/generated/") {
			continue
		}
		for _, name := range p.GoFiles {
			if strings.HasPrefix(name, "zz_generated") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), filepath.Join("../..", path, name), nil, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, declared := range file.Decls {
				var bare []string
				switch declared := declared.(type) {
				case *ast.FuncDecl:
					if declared.Doc == nil && declared.Name.IsExported() && !slices.Contains(known, declared.Name.Name) && receiverIsExported(declared) {
						bare = append(bare, declared.Name.Name)
					}
				case *ast.GenDecl:
					for _, spec := range declared.Specs {
						switch spec := spec.(type) {
						case *ast.TypeSpec:
							if declared.Doc == nil && spec.Doc == nil && spec.Name.IsExported() {
								bare = append(bare, spec.Name.Name)
							}
						case *ast.ValueSpec: // the names of an enumeration may speak for themselves
							if len(declared.Specs) == 1 && declared.Doc == nil && spec.Doc == nil && spec.Comment == nil && spec.Names[0].IsExported() {
								bare = append(bare, spec.Names[0].Name)
							}
						}
					}
				}
				for _, name := range bare {
					t.Errorf("%s: %s has no comment: say what it means, its unit, its errors", path, name)
				}
			}
		}
	}
}

// TestOneAliasForEachAPIPackage: a name before a dot means the same package in each file.
func TestOneAliasForEachAPIPackage(t *testing.T) {
	aliases := map[string]map[string][]string{}
	for _, p := range packages(t) {
		path := strings.TrimPrefix(p.ImportPath, module)
		if strings.HasPrefix(path, "pkg/generated/") {
			continue
		}
		for _, name := range slices.Concat(p.GoFiles, p.TestGoFiles, p.XTestGoFiles) {
			if strings.HasPrefix(name, "zz_generated") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), filepath.Join("../..", path, name), nil, parser.ImportsOnly)
			if err != nil {
				t.Fatal(err)
			}
			for _, spec := range file.Imports {
				imported := strings.Trim(spec.Path.Value, `"`)
				if !strings.HasPrefix(imported, module+"pkg/apis/") && !strings.HasPrefix(imported, module+"pkg/generated/") {
					continue
				}
				alias := ""
				if spec.Name != nil {
					alias = spec.Name.Name
				}
				if aliases[imported] == nil {
					aliases[imported] = map[string][]string{}
				}
				aliases[imported][alias] = append(aliases[imported][alias], path+"/"+name)
			}
		}
	}
	for imported, names := range aliases {
		if len(names) > 1 {
			t.Errorf("%s has several aliases, want one: %v", imported, names)
		}
	}
}

// receiverIsExported reports whether a function is one of the package, or of an exported type.
func receiverIsExported(f *ast.FuncDecl) bool {
	if f.Recv == nil {
		return true
	}
	receiver := f.Recv.List[0].Type
	for {
		switch of := receiver.(type) {
		case *ast.StarExpr:
			receiver = of.X
		case *ast.IndexExpr:
			receiver = of.X
		case *ast.IndexListExpr:
			receiver = of.X
		case *ast.Ident:
			return of.IsExported()
		}
	}
}
