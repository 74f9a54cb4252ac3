# What this repository can do: "make help". It needs Go, git, a C compiler (for the race detector) and a Go module proxy.
SHELL       := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

GO       ?= go
MODULE   := github.com/nordix/meridio-nsp
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS  := -s -w -X $(MODULE)/pkg/nsp.Version=$(VERSION) -X $(MODULE)/pkg/cli.Version=$(VERSION)
TOOLS    := $(CURDIR)/bin/tools
CHART    := deployments/helm/meridio-nsp
FUZZTIME ?= 5s

# Packages whose tests need the control plane; the first lane is the one that "make test" runs.
LANE  := ./test/e2e
LANES := ./test/e2e/... ./test/cluster/...
# Tests of that lane which take most of its time and are left to "make verify".
LATER := ^Test(Demo|StreamSelectsItsTargets|TwinClusters|RecordedMetrics|Conformance\w+|Histories\w+)$$
UNITS  = $(shell $(GO) list ./... | grep -vE '/test/(e2e|cluster)(/|$$)')

# As root everything can run, so nothing may be skipped.
REPORT = $(GO) run ./test/report $(if $(filter 0,$(shell id -u)),-no-skips)

.PHONY: help build test verify unit e2e e2e-all lint vet-modules fuzz bench demo proto proto-check proto-baseline crds crds-check docs docs-check rules azure azure-test controlplane clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## Build static binaries of all commands into bin/
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/...

test: unit e2e ## Run the unit tests and the main end-to-end lane

verify: lint vet-modules rules azure-test unit e2e-all fuzz ## Run everything: linters, all tests with -race, all lanes, a taste of fuzzing

unit: controlplane ## Run the unit tests with the race detector
	$(GO) test -race -json $(UNITS) | $(REPORT)

e2e: build controlplane $(TOOLS)/helm ## Run the main end-to-end lane on a real control plane
	$(GO) test -race -count=1 -timeout 20m -skip '$(LATER)' -json $(LANE) | $(REPORT)

e2e-all: build controlplane $(TOOLS)/helm ## Run all end-to-end lanes, one after the other
	$(GO) test -race -count=1 -timeout 40m -p 1 -json $(LANES) | $(REPORT)

lint: $(addprefix $(TOOLS)/,golangci-lint buf helm) proto-check crds-check docs-check ## Check code, protos and chart
	$(GO) vet ./...
	$(TOOLS)/golangci-lint run ./...
	cd api && $(TOOLS)/buf format -d --exit-code && $(TOOLS)/buf lint && $(TOOLS)/buf breaking --against baseline.binpb
	if [ -d $(CHART) ]; then $(TOOLS)/helm lint --strict $(CHART); fi

vet-modules: ## Vet the test modules beside the main one
	CGO_ENABLED=0 $(GO) -C test/controlplane vet ./...
	$(GO) -C test/crds vet ./...
	$(GO) -C test/rules vet ./...
	$(GO) -C cmd/resolver-azure vet ./...

rules: ## Test the alerts of the chart with Prometheus's own engine (minutes to build, once)
	$(GO) -C test/rules test ./...

# A module of its own: the SDK is larger than all the rest.
azure: ## Build the provider for Azure into bin/ (minutes, once)
	CGO_ENABLED=0 $(GO) -C cmd/resolver-azure build -trimpath -ldflags '-s -w' -o $(CURDIR)/bin/ .

azure-test: ## Test the provider for Azure with the fake servers of the SDK
	$(GO) -C cmd/resolver-azure test -race ./...

fuzz: ## Run each fuzz target for FUZZTIME (5s)
	@grep -roE --include='*_test.go' '^func Fuzz\w+' . | while IFS=: read -r file func; do \
	  echo "$$file $${func#func }"; \
	  $(GO) -C "$${file%/*}" test -run '^$$' -fuzz "^$${func#func }$$" -fuzztime $(FUZZTIME) . </dev/null; \
	done

bench: build controlplane $(TOOLS)/helm ## Measure the budgets
	$(GO) run ./test/bench
	$(GO) test -run '^$$' -bench . -benchtime 2s ./pkg/lb/nft ./pkg/lb/maglev

demo: build controlplane $(TOOLS)/helm ## Watch a Service drive targets and load balancers
	$(GO) build -o bin/demo ./test/demo # "go run" would call Ctrl-C a failure
	bin/demo

controlplane: ## Build the Kubernetes control plane of the tests (minutes, once)
	$(GO) run ./test/cluster/build

# The plug-ins are named by path in buf.gen.yaml, so nothing that happens to be installed can slip in.
BUF := $(addprefix $(TOOLS)/,buf protoc-gen-go protoc-gen-go-grpc)

proto: $(BUF) ## Generate the Go code of api/
	cd api && $(TOOLS)/buf format -w && $(TOOLS)/buf generate

proto-check: $(BUF)
	@fresh=$$(mktemp -d) && trap 'rm -rf $$fresh' EXIT && (cd api && $(TOOLS)/buf generate -o $$fresh) && \
	sums() { (cd $$1 && find . -name '*.pb.go' -exec sha256sum {} + | sort -k 2); } && \
	diff <(sums $$fresh) <(sums api) || { echo 'generated code is stale: run "make proto"' >&2; exit 1; }

proto-baseline: $(TOOLS)/buf ## At a release: make today's protos the ones later changes are compared with
	cd api && $(TOOLS)/buf build --exclude-source-info -o baseline.binpb

crds: $(TOOLS)/controller-gen ## Generate the CRDs, and the copying code, of api/v1alpha1
	$(TOOLS)/controller-gen object crd paths=./api/v1alpha1 output:object:dir=api/v1alpha1 output:crd:dir=$(CHART)/files/crds

crds-check: $(TOOLS)/controller-gen
	@fresh=$$(mktemp -d) && trap 'rm -rf $$fresh' EXIT && \
	$(TOOLS)/controller-gen object crd paths=./api/v1alpha1 output:object:dir=$$fresh/go output:crd:dir=$$fresh/crds && \
	diff $$fresh/go/zz_generated.deepcopy.go api/v1alpha1 && diff -r $$fresh/crds $(CHART)/files/crds || \
	{ echo 'generated code is stale: run "make crds"' >&2; exit 1; }

# The tests that compare a page of docs/reference with the code write it, one after the other.
REFERENCE := ./cmd/... ./pkg/nsp ./pkg/tapa/sidecar ./pkg/lb ./pkg/kube ./test/reference

docs: $(TOOLS)/buf ## Generate docs/reference from the code
	cd api && $(TOOLS)/buf build -o ../bin/api.binpb
	$(GO) run ./test/reference/api bin/api.binpb > docs/reference/api.md
	UPDATE_REFERENCE=1 $(GO) test -count=1 -p 1 -run '^TestReference$$' $(REFERENCE)

docs-check: $(TOOLS)/buf
	@mkdir -p bin && cd api && $(TOOLS)/buf build -o ../bin/api.binpb
	@$(GO) run ./test/reference/api bin/api.binpb | diff docs/reference/api.md - || { echo 'docs/reference is stale: run "make docs"' >&2; exit 1; }
	$(GO) test -run '^TestReference$$' $(REFERENCE)

# Developer tools, each pinned by a module of its own: their dependencies would lift each other's versions.
$(TOOLS)/%: test/tools/%/go.mod
	@echo "building $* (once)"
	CGO_ENABLED=0 $(GO) -C $(<D) build -trimpath -ldflags '-s -w' -o $(TOOLS)/ tool
	@touch $@

clean: ## Remove bin/
	rm -rf bin
