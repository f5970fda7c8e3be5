# kbnode. `make help` lists the targets. No manual setup is needed.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.SECONDARY:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules
# go-nvml wraps functions that nvml.h calls deprecated.
export CGO_CFLAGS := -O2 -g -Wno-deprecated-declarations

SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
HOST_ARCH := $(shell go env GOHOSTARCH 2>/dev/null)
CACHE     := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/kbnode
TOOLS     := $(CACHE)/tools

LINT_VERSION  := 2.15.0
AGENT_VERSION := 3.138.3
# What nodes that kbnode 0.x set up run, until 2027-01-01 (docs/adr/0023-jobs-over-a-stream.md).
OLD_AGENT_VERSION := 3.76.2
AGENT_TOOLCHAIN := go1.27.3
VALE_VERSION  := 3.21.0
LINT  := $(TOOLS)/golangci-lint-$(LINT_VERSION)/golangci-lint
AGENT := $(TOOLS)/agent-$(AGENT_VERSION)/agent
OLD_AGENT := $(TOOLS)/agent-$(OLD_AGENT_VERSION)/agent
PROMTOOL := $(TOOLS)/promtool/usr/bin/promtool
VALE  := $(TOOLS)/vale-$(VALE_VERSION)/vale
GORELEASER_VERSION := 2.13.0
GORELEASER := $(TOOLS)/goreleaser-$(GORELEASER_VERSION)/goreleaser
ACTIONLINT_VERSION := 1.7.12
ACTIONLINT := $(TOOLS)/actionlint-$(ACTIONLINT_VERSION)/actionlint
GOTESTSUM_VERSION := 1.13.0
export GOTESTSUM := $(TOOLS)/gotestsum-$(GOTESTSUM_VERSION)/gotestsum

VERSION ?= $(shell git describe --tags --always --match 'v*' 2>/dev/null | sed 's/^v//')
COMMIT  ?= $(shell git rev-parse HEAD 2>/dev/null)
DATE    ?= $(shell git log -1 --format=%cI 2>/dev/null)
CLI     := github.com/gpu-mode/kbnode/internal/cli
LDFLAGS := -s -w -E kbnode_entry -X $(CLI).version=$(VERSION) -X $(CLI).commit=$(COMMIT) -X $(CLI).date=$(DATE)

BIN    := build/kbnode-linux-$(HOST_ARCH)
BKSTUB := build/bkstub
PROBE  := internal/machine/detect/probe/bin
RUNNER := internal/evaluate/runner/program/bin

CC_amd64 := $(if $(filter amd64,$(HOST_ARCH)),gcc,x86_64-linux-gnu-gcc)
CC_arm64 := $(if $(filter arm64,$(HOST_ARCH)),gcc,aarch64-linux-gnu-gcc)
DEPS_amd64 := $(if $(filter amd64,$(HOST_ARCH)),gcc libc6-dev,gcc-x86-64-linux-gnu libc6-dev-amd64-cross)
DEPS_arm64 := $(if $(filter arm64,$(HOST_ARCH)),gcc libc6-dev,gcc-aarch64-linux-gnu libc6-dev-arm64-cross)

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

include test/vm/vm.mk
include test/nvcc/nvcc.mk
include test/postgres/postgres.mk

# ---- build ----------------------------------------------------------------

.PHONY: build
build: $(BIN) ## build a static binary for this machine in build/
	@ln -sf $(notdir $(BIN)) build/kbnode

.PHONY: look
look: build ## show a recorded B200 node, and a broken one
	build/kbnode plan --root examples/machines/b200x8.txtar
	! build/kbnode doctor --root examples/machines/b200-faults.txtar

.PHONY: build-all
build-all: build build/kbnode-linux-amd64 build/kbnode-linux-arm64 ## build static binaries for amd64 and arm64 in build/

SOURCES := $(wildcard $(shell git ls-files -co --exclude-standard -- '*.go' go.mod go.sum 'hooks/*' 'systemd/*' 'packaging/image/*' 2>/dev/null))

# The NVML probe is the only cgo program; kbnode embeds it, compressed.
# -z lazy: go-nvml has undefined symbols that older drivers lack.
$(PROBE)/%/kbnode-nvml.gz: $(wildcard cmd/kbnode-nvml/*.go internal/plan/nvml/*.go) go.mod | deps-%
	mkdir -p build/probe
	CGO_ENABLED=1 GOOS=linux GOARCH=$* CC=$(CC_$*) go build -trimpath -ldflags '-s -w -extldflags=-Wl,-z,lazy' -o build/probe/kbnode-nvml-$* ./cmd/kbnode-nvml
	gzip -9 -n -c build/probe/kbnode-nvml-$* >$@

# kbnode embeds the program that jobs run, compressed. Its bytes depend on its sources alone.
$(RUNNER)/%/kbnode-runner.gz: $(SOURCES)
	mkdir -p build/runner
	CGO_ENABLED=0 GOOS=linux GOARCH=$* go build -trimpath -buildvcs=false -ldflags '-s -w' -o build/runner/kbnode-runner-$* ./cmd/kbnode-runner
	sha256sum <build/runner/kbnode-runner-$* >$(@D)/kbnode-runner.sha256
	gzip -9 -n -c build/runner/kbnode-runner-$* >$@

build/kbnode-linux-%: $(PROBE)/%/kbnode-nvml.gz $(RUNNER)/%/kbnode-runner.gz $(SOURCES)
	CGO_ENABLED=0 GOOS=linux GOARCH=$* go build -trimpath -ldflags '$(LDFLAGS)' -o $@ ./cmd/kbnode

$(BKSTUB): $(SOURCES)
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o $@ ./test/bkstub

# ---- packages -------------------------------------------------------------

# Without a remote, goreleaser reads no commit from git.
REMOTE = $(if $(shell git remote),,GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=remote.origin.url GIT_CONFIG_VALUE_0=https://github.com/gpu-mode/kbnode)

# SNAPSHOT=0.2.0-rc.1 replaces the default version, which increases with each commit.
.PHONY: snapshot
snapshot: $(GORELEASER) ## build archives, .deb and .rpm of the working tree in dist/; SNAPSHOT=VERSION
	$(if $(SNAPSHOT),KBNODE_SNAPSHOT=$(SNAPSHOT)) $(REMOTE) $(GORELEASER) release --snapshot --clean --parallelism 2

.PHONY: release
release: $(GORELEASER) ## build what a release has from the tag of this commit in dist/; publishes nothing
	$(REMOTE) $(GORELEASER) release --clean --parallelism 2

.PHONY: packages-check
packages-check: $(GORELEASER) | deps-check ## check the packages of this commit: reproducible builds, lintian, rpm, content
	$(call need,lintian,lintian)
	$(call need,rpm,rpm)
	$(call need,cpio,cpio)
	$(GORELEASER) check
	packaging/check.sh $(GORELEASER)

# Two versions of the .deb for the scenarios, the cheap way: only this architecture, and
# no archive, .rpm or SBOM. They contain the working tree, committed or not.
DEBS := build/debs/old.deb build/debs/new.deb
PACKAGED := .goreleaser.yaml CHANGELOG.md LICENSE $(shell git ls-files -co --exclude-standard -- packaging 2>/dev/null)
build/debs/old.deb: DEB_VERSION := 0.0.1-scenario.1
build/debs/new.deb: DEB_VERSION := 0.0.1-scenario.2
build/debs/new.deb: | build/debs/old.deb

.PHONY: debs
debs: $(DEBS) ## build an older and a newer .deb for the scenarios in build/debs

build/debs/%.deb: $(filter-out %_test.go test/%,$(SOURCES)) $(filter-out %_test.go,$(PACKAGED)) | $(GORELEASER)
	@mkdir -p $(@D)
	sed -e 's/^\( *goarch:\).*/\1 [$(HOST_ARCH)]/' -e 's/^\( *formats:\) \[deb, rpm\]/\1 [deb]/' .goreleaser.yaml >$(@D)/goreleaser.yaml
	echo 'dist: $(@D)/dist' >>$(@D)/goreleaser.yaml
	PACKAGE_ARCHES=$(HOST_ARCH) KBNODE_SNAPSHOT=$(DEB_VERSION) $(REMOTE) $(GORELEASER) release --snapshot --clean --skip=archive,sbom -f $(@D)/goreleaser.yaml
	mv $(@D)/dist/kbnode_*.deb $@
	@touch $@ # its time is the commit's

# What packages contain besides the binary. goreleaser passes version and date.
PACKAGE_ARCHES ?= amd64 arm64
.PHONY: package-files
package-files: $(PACKAGE_ARCHES:%=$(PROBE)/%/kbnode-nvml.gz) $(PACKAGE_ARCHES:%=$(RUNNER)/%/kbnode-runner.gz)
	rm -rf build/package
	mkdir -p build/package
	for arch in $(PACKAGE_ARCHES); do \
	  gunzip -c $(PROBE)/$$arch/kbnode-nvml.gz >build/package/kbnode-nvml-$$arch; \
	  gunzip -c $(RUNNER)/$$arch/kbnode-runner.gz >build/package/kbnode-runner-$$arch; done
	go run ./internal/cli/gen --version $(VERSION) --date $(DATE) build/package
	packaging/licenses.sh >build/package/third-party-licenses.txt
	gzip -9nc CHANGELOG.md >build/package/CHANGELOG.md.gz
	gzip -9n build/package/changelog build/package/third-party-licenses.txt build/package/man/*

# ---- test -----------------------------------------------------------------

.PHONY: test
test: ## run what must hold at every commit: what check runs, under the race detector, slower tests, the results database, and one story in the virtual machine
	@test/stages.sh race vm-ready +test-story lint hooks-lint spell prose rules test-long test-db

.PHONY: check
check: lint hooks-lint spell prose rules unit ## run linters, the checks of spelling and words, and unit tests

.PHONY: lint
lint: $(LINT) $(ACTIONLINT)
	$(LINT) run --build-tags vm ./...
	$(ACTIONLINT)

# The files of the working tree that match patterns: not those that git only still has in its index.
worktree = git ls-files -co --exclude-standard -- $(1) | grep -vxFf <(git ls-files -d)

.PHONY: hooks-lint
hooks-lint: | deps-check
	shellcheck -x hooks/agent-startup .ci/run packaging/scripts/* $$($(call worktree,'*.sh'))

# .codespellrc lists words that only look misspelled. Test data is not checked.
.PHONY: spell
spell: | deps-check ## find misspelled words in documents, comments and messages
	$(call worktree,. ':!:*go.sum' ':!:test/agent/go.mod' ':!:*/testdata/*' ':!:*.svg') | xargs -d '\n' codespell

.PHONY: prose
prose: $(VALE) ## check the words of documents, comments and messages against .vale/kbnode
	$(call worktree,'*.go' '*.md' ':!:*/testdata/*') | xargs -d '\n' $(VALE) --output=line

.PHONY: rules
rules: $(PROMTOOL) ## check and test the alerts
	cd packaging/prometheus && $(PROMTOOL) check rules kbnode.rules.yml && $(PROMTOOL) test rules kbnode.rules.test.yml

# The linters run go vet.
.PHONY: unit race
unit race: $(AGENT) $(GOTESTSUM) | deps-$(HOST_ARCH) deps-check
	KBNODE_TEST_AGENT=$(AGENT) test/retest.sh $@ ./... $(if $(filter race,$@),-race) -vet=off -short

.PHONY: test-long
test-long: $(GOTESTSUM) | deps-check ## test the examples with compiled submissions
	$(call need,g++,g++)
	test/retest.sh long ./examples

# Cases of the evaluation engine: those in the repository, the shared ones if they are
# beside it, and those in the directory that KBNODE_RUNNER_CASES names.
.PHONY: test-runner
test-runner: | deps-check ## test the evaluation engine against recorded runs of the Python one
	KBNODE_RUNNER_CASES=$(if $(KBNODE_RUNNER_CASES),$(abspath $(KBNODE_RUNNER_CASES))) go test -count=1 -v -run 'Cases$$' ./internal/evaluate/runner | \
		awk '/^ *=== /{next} /^    --- PASS/{n++; next} /^--- PASS/{next} /^    --- FAIL/{bad++} {print} END{print n+bad " cases, " bad+0 " failed"}'

.PHONY: test-honest
test-honest: ## evaluate 200 honest submissions, half of them on a busy machine, and attacks: only their times may be implausible
	KBNODE_HONEST=200 go test -count 1 -timeout 60m -run 'TestHonestIsPlausible|TestAttacksAreNamed' ./internal/evaluate/runner

.PHONY: test-arena
test-arena: ## try all cheats against three shapes of eval.py; 20 minutes
	go test -count 1 -timeout 60m ./internal/evaluate/arena

.PHONY: arena
arena: build ## try the corpus of cheats against a problem; PROBLEM=directory or example
	build/kbnode e2e cheats --problem $(or $(PROBLEM),prefix_python)

.PHONY: bench
bench: $(AGENT) ## measure split, inventory, and a pass over a node as planned for up to 64 slots, the cost of the runner, and the dispatch of jobs (make bench-vm: the start of a job)
	go test -run '^$$' -bench . -benchmem ./internal/...
	KBNODE_TEST_AGENT=$(AGENT) go test -run '^$$' -bench . -benchtime 1x ./test/bktest

.PHONY: golden
golden: ## write the golden files again; review the diff
	go test ./internal/plan -update
	go test ./internal/cli -update
	go test ./internal/job/guard -update
	go test ./internal -update

.PHONY: fuzz
fuzz: ## fuzz the parsers of hostile input, a minute each
	grep -rHo '^func Fuzz[A-Za-z]*' --include='*_test.go' internal | while IFS=: read -r file name; do \
	  go test "./$${file%/*}" -run '^$$' -fuzz "^$${name#func }$$" -fuzztime 60s -fuzzminimizetime 5x || exit; done

# ---- tools ----------------------------------------------------------------

$(LINT):
	GOBIN=$(@D) CGO_ENABLED=0 go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v$(LINT_VERSION)

# Vale reads Go through C parsers.
$(VALE): | deps-$(HOST_ARCH)
	$(call need,g++,g++)
	GOBIN=$(@D) CGO_ENABLED=1 CGO_CFLAGS='-O0 -w' CGO_CXXFLAGS='-O0 -w' go install -trimpath -ldflags='-s -w' github.com/vale-cli/vale/v3/cmd/vale@v$(VALE_VERSION)

$(GORELEASER):
	GOBIN=$(@D) CGO_ENABLED=0 go install -trimpath -ldflags='-s -w' github.com/goreleaser/goreleaser/v2@v$(GORELEASER_VERSION)

$(ACTIONLINT):
	GOBIN=$(@D) CGO_ENABLED=0 go install -ldflags='-s -w' github.com/rhysd/actionlint/cmd/actionlint@v$(ACTIONLINT_VERSION)

$(GOTESTSUM):
	GOBIN=$(@D) CGO_ENABLED=0 go install -ldflags='-s -w' gotest.tools/gotestsum@v$(GOTESTSUM_VERSION)

# test/agent/README.md says why not with go install. go.sum has the sums of its modules; the toolchain has none there.
$(AGENT):
	cd test/agent && GONOSUMDB='*' GOTOOLCHAIN=$(AGENT_TOOLCHAIN) GOFLAGS=-mod=readonly CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o $@ github.com/buildkite/agent/v3

# With -trimpath, it shares the compiled standard library with kbnode.
$(OLD_AGENT):
	GOBIN=$(@D) CGO_ENABLED=0 go install -trimpath -ldflags='-s -w' github.com/buildkite/agent/v3@v$(OLD_AGENT_VERSION)

# Unpacked, because the installed package would run Prometheus.
$(PROMTOOL):
	mkdir -p $(TOOLS)/promtool
	cd $(TOOLS)/promtool && { apt-get download -qq prometheus || { $(SUDO) apt-get update -qq && apt-get download -qq prometheus; }; } && dpkg-deb -x prometheus_*.deb . && rm prometheus_*.deb

# need COMMAND, PACKAGES: install packages if a command is missing.

define need
	@command -v $(1) >/dev/null || { $(SUDO) apt-get update -qq; DEBIAN_FRONTEND=noninteractive $(SUDO) apt-get install -y -qq --no-install-recommends $(2) >/dev/null; }
endef

.PHONY: deps-amd64 deps-arm64
deps-amd64 deps-arm64: deps-%:
	$(call need,$(CC_$*),$(DEPS_$*))

.PHONY: deps-check
deps-check:
	$(call need,shellcheck,shellcheck)
	$(call need,codespell,codespell)
	$(call need,python3,python3)

.PHONY: clean
clean: ## remove build outputs (caches in $(CACHE) stay)
	rm -rf build dist $(PROBE)/*/*.gz $(RUNNER)/*/kbnode-runner.*
