# Copyright The Holdfast Authors.
# SPDX-License-Identifier: Apache-2.0

# Every target is described by `make help`; one that is missing there is a bug.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

LAB        := $(CURDIR)/.lab
BIN        := $(LAB)/bin
HOLDFAST   := $(BIN)/holdfast
VERSION    ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS    := -s -w -X main.version=$(VERSION)
# Programs for other machines: the same commit makes the same bytes in each folder.
SHIPPED    := -trimpath -buildvcs=false -ldflags '$(LDFLAGS)'
# The image of make image, without its tag.
IMAGE      ?= ghcr.io/holdfast-io/holdfast
GO_PACKAGES := ./cmd/... ./pkg/... ./test/...

# Extra flags of the three roles in the lab, as in
# make lab CONTROLLER_FLAGS=--concurrent-backups=4
APISERVER_FLAGS  ?=
CONTROLLER_FLAGS ?=
AGENT_FLAGS      ?=
# How many real nodes the lab gets; more than none needs root.
NODES            ?= 0

# The newest Kubernetes that the lab runs, and the oldest that Holdfast needs.
NEWEST           := 1.37.2
OLDEST           := 1.34.4
# The lab's Kubernetes, as in make test KUBERNETES=1.34.4
KUBERNETES       ?= $(NEWEST)
export KUBERNETES

export CGO_ENABLED := 0

##@ Use

.PHONY: help
help: ## Describe every target.
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z][a-z0-9-]*:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: programs ## Run the main job on a Kubernetes of its own, and show it. Needs Go and make only.
	@hack/demo.sh

.PHONY: lab
lab: programs ## Start a Kubernetes with Holdfast in it, on loopback. NODES=2 adds real nodes (root).
	@$(BIN)/lab up --dir $(LAB) --bin $(BIN) --nodes $(NODES)
	@if [ $(NODES) != 0 ]; then PUSH=true hack/image.sh "$$(go env GOARCH)=$(HOLDFAST)" "$$($(BIN)/lab registry --dir $(LAB))/holdfast-io/holdfast:dev"; fi
	@$(BIN)/lab holdfast up --dir $(LAB) --holdfast $(HOLDFAST) --artifacts artifacts \
	  --apiserver-flags "$(APISERVER_FLAGS)" --controller-flags "$(CONTROLLER_FLAGS)" --agent-flags "$(AGENT_FLAGS)"

.PHONY: lab-down
lab-down: ## Stop the lab and remove what it stored, apart from its logs and binaries.
	@if [ -x $(BIN)/lab ]; then $(BIN)/lab down --dir $(LAB); else echo "lab: nothing runs"; fi

##@ Develop

.PHONY: programs
programs: ## Build all that is run: holdfast, the lab, its Kubernetes and its S3 server. KUBERNETES=1.34.4
	@if [ ! -x $(BIN)/kubectl ]; then hack/first-build.sh; fi
	@$(MAKE) --no-print-directory build lab-tools

.PHONY: build
build: ## Build holdfast, and its plugin for kubectl.
	@mkdir -p $(BIN)
	@command -v go >/dev/null || { echo "make: the Go toolchain is needed: install Go 1.26 or later"; exit 1; }
	@echo "building holdfast"
	@go build -ldflags '$(LDFLAGS)' -o $(HOLDFAST) ./cmd/holdfast
	@go build -ldflags '$(LDFLAGS)' -o $(BIN)/kubectl-holdfast ./cmd/kubectl-holdfast

.PHONY: image
image: ## Build the image for linux/amd64 and linux/arm64, as the archive .lab/image/holdfast.tar. IMAGE=NAME, VERSION=TAG; PUSH=true pushes it.
	@mkdir -p $(LAB)/image
	@for arch in amd64 arm64; do \
	  echo "building holdfast for linux/$$arch"; \
	  GOOS=linux GOARCH=$$arch go build $(SHIPPED) -o $(LAB)/image/holdfast-$$arch ./cmd/holdfast; \
	done
	@PUSH=$(PUSH) hack/image.sh "amd64=$(LAB)/image/holdfast-amd64 arm64=$(LAB)/image/holdfast-arm64" $(IMAGE):$(VERSION) $(LAB)/image/holdfast.tar

# The platforms of make release: the plugin for all of them, and holdfast for those with Linux.
PLATFORMS  ?= linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64
# The private key that signs a release, if there is one.
KEY        ?=

.PHONY: release
release: ## Build the files of a release in .lab/release/VERSION. VERSION=v1.2.3, KEY=FILE signs them.
	@[[ "$(VERSION)" =~ ^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$$ ]] || { echo "make: the version is $(VERSION): give one, as make release VERSION=v1.2.3"; exit 1; }
	@rm -rf $(LAB)/release/programs $(LAB)/release/man $(LAB)/release/$(VERSION)
	@for platform in $(PLATFORMS); do for program in holdfast kubectl-holdfast; do \
	  if [[ $$program == holdfast && $$platform != linux/* ]]; then continue; fi; \
	  echo "building $$program for $$platform"; \
	  mkdir -p $(LAB)/release/programs/$$program/$$platform; \
	  GOOS=$${platform%/*} GOARCH=$${platform#*/} go build $(SHIPPED) -o $(LAB)/release/programs/$$program/$$platform/ ./cmd/$$program; \
	done; done
	@created="$$(git log -1 --format=%ct 2>/dev/null || echo 0)"; \
	TZ=UTC SOURCE_DATE_EPOCH=$$created go run -C hack/clidocs . -man $(LAB)/release/man && \
	go run -C hack/release . -version $(VERSION) -created "$$created" -key "$(if $(KEY),$(abspath $(KEY)))" \
	  -programs $(LAB)/release/programs -man $(LAB)/release/man -out $(LAB)/release/$(VERSION)
	@echo "the release is in $(LAB)/release/$(VERSION)"

.PHONY: lab-tools
lab-tools: ## Build the lab's tools, its Kubernetes and its S3 server from Go modules.
	@mkdir -p $(BIN)
	@go build -C hack/lab -o $(BIN)/lab .
	@$(BIN)/lab build --bin $(BIN) --kubernetes "$(KUBERNETES)"

.PHONY: helm
helm: ## Build Helm, which releases and the tests on real nodes use.
	@mkdir -p $(BIN)
	@go build -C hack/chart -o $(BIN)/helm helm.sh/helm/v3/cmd/helm

.PHONY: csi
csi: programs ## Build Kubernetes's CSI sidecars (minutes the first time), and test the lab's driver and snapshots. No root.
	@$(BIN)/lab build --snapshots --bin $(BIN)
	@mkdir -p $(LAB)/tmp && cd hack/lab/snapshots && TMPDIR=$(LAB)/tmp go test -count=1 ./...
	@TMPDIR=$(LAB)/tmp go test -count=1 -failfast -timeout 20m ./test/snapshots/...

.PHONY: generate
generate: ## Write everything that is generated.
	@hack/update-codegen.sh

.PHONY: lint
lint: ## Check formatting, vet and staticcheck, in every module.
	@hack/lint.sh

.PHONY: verify
verify: lint ## Fail when something generated is stale, or a rule of the architecture is broken.
	@hack/verify-codegen.sh
	@go test ./test/architecture/...

##@ Test

# Tests of Kopia's repositories, of sizes, and of thousands of random cases are left to make test.
QUICK_LEFT := /pkg/(generated|datapath|repository|restore/source|backup/archive|controllers/simulation)(/|$$)
QUICK_SKIP := RandomGraph|TestTwoWriters|TestKilledAt|TestLarge|PeakMemory|TestKeysAreRecovered|TestKeysThatCannotBeRecovered|TestStoppedAnywhere

.PHONY: quick
quick: ## Run the quick unit tests, while you work: no race detector, no Kopia, no lab. What has not changed is not run again.
	@RAPID_SEED=$${RAPID_SEED:-1} go test -p 4 -skip '$(QUICK_SKIP)' $$(go list ./cmd/... ./pkg/... ./test/architecture/... | grep -v -E '$(QUICK_LEFT)')

.PHONY: test
test: programs ## Run all tests that need no root: unit, conformance, integration. KUBERNETES=1.34.4
	@hack/test.sh

# Azurite, from npm: 360 MB, for tests only.
AZURITE := $(LAB)/azurite

.PHONY: stores
stores: ## Run the suite for stores on all emulators of clouds, Azurite too. Needs npm, and installs Azurite in .lab.
	@command -v npm >/dev/null || { echo "make: npm is needed for Azurite: install nodejs and npm"; exit 1; }
	@[ -x $(AZURITE)/node_modules/.bin/azurite-blob ] || { mkdir -p $(AZURITE) && npm install --prefix $(AZURITE) --no-audit --no-fund --silent azurite@3.37.0; }
	@cd hack/stores && go test -count=1 -v -run 'GCS|Azurite' ./...

.PHONY: versions
versions: ## Restore what the most used charts create from the oldest Kubernetes into the newest. Builds both first.
	@for version in $(NEWEST) $(OLDEST); do $(MAKE) --no-print-directory programs KUBERNETES=$$version; done
	@KUBERNETES=$(OLDEST) go test -count=1 -timeout 20m ./test/realworld -args -newer=$(NEWEST)

# How long the campaigns last at least, and how often each role is killed at least.
SOAK_DURATION ?= 20m
SOAK_KILLS    ?= 300

.PHONY: soak
soak: programs ## Run random campaigns for long: two clusters and one store, snapshots of volumes, kills, pauses, a bad network. SOAK_DURATION=20m SOAK_KILLS=300
	@hack/soak.sh $(SOAK_DURATION) $(SOAK_KILLS)

.PHONY: e2e
e2e: programs ## Run the end-to-end tests on two real nodes. Needs root and Debian packages.
	@SNAPSHOTS=true hack/e2e.sh -test.skip=TestUpgrade
	@INSTALL=kustomize AGGREGATOR_ROUTING=false hack/e2e.sh '-test.run=TestReplicas|TestRollout|TestServingReplicaEnds'

# The commit that was released last: the oldest version from which an upgrade is promised.
LAST_RELEASE ?= dfa59e6ab6cd2536c114115ed210cc43f017bfda

.PHONY: upgrade
upgrade: programs ## Upgrade the last release to this tree under load, and go back, on two real nodes. Builds that first. Needs root.
	@LAST_RELEASE=$(LAST_RELEASE) hack/e2e.sh -test.run=TestUpgrade

.PHONY: bench
bench: programs ## Measure: counts and ratios against peers and limits.
	@hack/bench.sh

.PHONY: clean
clean: lab-down ## Remove all that was built.
	@rm -rf $(LAB)
