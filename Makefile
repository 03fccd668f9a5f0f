# The commands of the house; `make` alone lists them. Everything they need is installed or started
# by the scripts in hack/, and only when it is missing.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

CARGO ?= cargo
TARGET ?= x86_64-unknown-linux-gnu
# Where `make binary` leaves it.
BINARY = $(or $(CARGO_TARGET_DIR),target)/$(TARGET)/release/mirrorlet

.PHONY: help build release book check fmt lint core test test-engine29 test-versions kube-versions conformance conformance-short conformance-node conformance-api chart versions test-helm test-unit image deny scripts demo tour day run bench up down kube cluster-up cluster-down

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## debug binary
	$(CARGO) build --locked

# Static; relocations packed and equal functions folded, which takes some 5 % off.
RELEASE_FLAGS := -C target-feature=+crt-static -C link-arg=-Wl,--pack-dyn-relocs=relr -C link-arg=-Wl,--icf=all

# The binary of record: static, optimised for size (some minutes).
.PHONY: binary deb test-deb
binary:
	RUSTFLAGS='$(RELEASE_FLAGS)' $(CARGO) build --locked --release --target $(TARGET)
	@ls -l $(BINARY)

fmt:
	$(CARGO) fmt --all --check

lint:
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings

core: ## the decisions alone and their tests: no async runtime, no Engine, no HTTP
	$(CARGO) test --locked --package mirrorlet-core

scripts:
	@for script in hack/*.sh hack/conformance/*.sh tests/common/*.sh .ci/run .ci/check; do bash -n "$$script"; done
	@hack/mutants.sh --check

versions: ## the chart and manifests say the version of Cargo.toml
	@hack/versions.sh >/dev/null

chart: ## the chart and the manifests made from it, without a cluster (builds Helm once, minutes)
	hack/test-chart.sh

check: fmt scripts versions lint ## format and lints: no Docker needed

# How much garbage Go's programs may have beside what they use, in percent, where tests wait for
# processors: a dockerd that `make test` starts, with its containerd, shims and runcs. From 1 GiB on each
# collects as often as it takes to stay there.
TESTS_GO := GOGC=400 GOMEMLIMIT=1GiB

test: ## everything: sets up Docker, images and Kubernetes, then check and all tests
	$(TESTS_GO) hack/docker-up.sh
	hack/kube-build.sh
	KUBE_VERSION=$(KUBECTL_OLDEST) hack/kube-build.sh --only kubectl
	hack/helm-build.sh
	hack/metrics-server-build.sh
	hack/images.sh
	hack/registry.sh
	CARGO="$(CARGO)" MAKE="$(MAKE)" KUBECTL_OLDEST=$(KUBECTL_OLDEST) TESTS_GO="$(TESTS_GO)" hack/test.sh

# What meets an Engine: all of it has to hold on both ends of the versions.
ENGINE_TESTS := agent engine faults
# What starts an Engine of its own, or reads the cgroups of the default one.
NOT_ENGINE_TESTS := daemon:: stats::

test-engine29: ## the tests that meet an Engine, on a current one with its containerd image store (built once, ten minutes)
	export DOCKER_HOST; DOCKER_HOST="$$(hack/engine29-up.sh)"; hack/images.sh; \
	$(CARGO) test --locked --no-fail-fast $(addprefix --test ,$(ENGINE_TESTS)) -- $(addprefix --skip ,$(NOT_ENGINE_TESTS))

# What meets an API server: all of it has to hold on the newest one, too.
KUBE_TESTS := cluster streaming
# What meets kubectl, in `cluster`.
KUBECTL_TESTS := bed:: embedded:: embedded_kubectl:: node_api:: node_streams::
# The ends of what Kubernetes' Go modules give. kubectl speaks SPDY until 1.30, WebSockets since 1.31.
KUBE_NEWEST := v1.36.3
KUBECTL_OLDEST := v1.30.4

.PHONY: schemas
schemas: ## the schemas of Kubernetes' kinds in crates/apimachinery/schemas, of the pinned version (needs Go)
	cd hack/kube && go run ./schemas ../../crates/apimachinery/schemas

kube-versions:
	hack/kube-build.sh
	KUBE_VERSION=$(KUBE_NEWEST) hack/kube-build.sh
	KUBE_VERSION=$(KUBECTL_OLDEST) hack/kube-build.sh --only kubectl

test-versions: kube-versions ## the tests that meet Kubernetes, on its newest servers, and with its oldest and newest kubectl (built once, twenty minutes)
	hack/helm-build.sh
	hack/docker-up.sh
	hack/metrics-server-build.sh
	hack/images.sh
	KUBE_VERSION=$(KUBE_NEWEST) $(CARGO) test --locked --no-fail-fast $(addprefix --test ,$(KUBE_TESTS))
	for version in $(KUBECTL_OLDEST) $(KUBE_NEWEST); do \
		KUBECTL_VERSION=$$version $(CARGO) test --locked --no-fail-fast --test cluster -- $(KUBECTL_TESTS); \
	done

IMAGE_TAR := target/image/mirrorlet.tar

release: binary ## what a release hands out, into target/dist: program, image, chart, package, SBOM, checksums
	hack/release.sh $(BINARY)

deb: binary ## the Debian package, into target/dist
	hack/deb.sh $(BINARY) target/dist

test-deb: deb ## the package on this machine: installed by apt, used, removed, purged
	hack/docker-up.sh
	hack/images.sh
	hack/test-deb.sh target/dist/*.deb

image: binary ## the image as a tar that Docker and containerd load, the same bytes every time
	hack/image.sh $(BINARY) $(IMAGE_TAR)

test-helm: binary ## the chart, installed as a DaemonSet by a real kubelet beside the Engine
	hack/docker-up.sh
	hack/images.sh
	BINARY=$(BINARY) hack/test-helm.sh

test-unit: ## tests that need no Docker
	$(CARGO) test --locked --workspace --lib --bins --test house
	$(CARGO) test --locked --package mirrorlet-dns --package mirrorlet-streaming --package mirrorlet-runtime

# Lives that `make simulate` plays.
SIMULATION_SEEDS ?= 10000

.PHONY: simulate
simulate: ## 10,000 lives of a node in memory, thrown by dice (SIMULATION_SEEDS=… for more)
	SIMULATION_SEEDS=$(SIMULATION_SEEDS) $(CARGO) test --locked --profile quick --test house simulation:: -- --nocapture

.PHONY: fuzz
fuzz: ## looks for inputs that break parsers and protocols, by libFuzzer (FUZZ_SECONDS=… for more than three minutes)
	CARGO="$(CARGO)" hack/fuzz.sh

.PHONY: mutants
mutants: ## plants faults in a copy of the program, and has the simulation find each of them
	hack/mutants.sh

book: ## the documents as a book, into target/book (mdBook, built once)
	"$$(hack/tool.sh mdbook 0.5.4 --no-default-features --features search)" build

# Which twenty `make sentences` draws.
SEED ?= 13

.PHONY: sentences
sentences: build ## twenty sentences of help, messages and documents at random, to be read aloud (SEED=… for others)
	hack/sentences.sh $(SEED)

deny: ## licences, sources, duplicates and advisories (cargo-deny, built once)
	hack/deny.sh

# CLUSTER=1 shows the agent as a Node of a real cluster.
CLUSTER ?=

demo: ## pods appear, change, survive a bad edit, a kill, and the agent's death; CLUSTER=1: in a real cluster
	hack/docker-up.sh
ifneq ($(CLUSTER),)
	hack/kube-build.sh
else
	command -v kubectl >/dev/null || hack/kube-build.sh --only kubectl
endif
	hack/images.sh
	hack/demo$(if $(CLUSTER),-cluster).sh

tour: ## the commands of README.md print what the page has, on a Docker Engine of its own (a minute)
	hack/tour.sh

day: ## the commands of docs/day.md print what the page has, on a Docker Engine of its own (three minutes)
	hack/day.sh

.PHONY: test-kubeadm
test-kubeadm: ## the commands of docs/control-plane.md: kubeadm init, upgrade and join with the agent as kubelet, on machines of their own (three minutes)
	hack/kubeadm.sh

run: ## the agent on a copy of examples/, left running
	hack/docker-up.sh
	hack/images.sh
	hack/demo.sh --leave-running

# As the unit and the image start the agent.
bench soak: export MALLOC_ARENA_MAX := 1
bench soak: export MALLOC_MMAP_THRESHOLD_ := 131072

bench: binary ## figures beside a floor measured in the same run, as a table and JSON
	hack/docker-up.sh
	hack/images.sh
	hack/kube-build.sh
	hack/registry.sh
	BENCH_BINARY=$(BINARY) BENCH_COMPOSE="$$(hack/compose-build.sh)" $(CARGO) bench --locked --profile quick --bench agent --bench rollouts --bench cluster --bench embedded
	$(CARGO) bench --locked --profile quick -p mirrorlet-core --bench expansion

# An hour, unless SOAK_SECONDS says another time.
.PHONY: soak
soak: binary ## churn on two agents for an hour (SOAK_SECONDS=…): memory, descriptors and threads must not grow
	hack/docker-up.sh
	hack/images.sh
	hack/kube-build.sh
	BENCH_BINARY=$(BINARY) $(CARGO) bench --locked --profile quick --bench soak

conformance: binary ## Kubernetes' own node specs against the agent: the score, and what failed; AREA="probes" runs one area
	hack/docker-up.sh
	MIRRORLET=$(BINARY) hack/conformance/run.sh

conformance-short: ## some specs of each area, with a debug build: minutes
	hack/docker-up.sh
	SHORT=1 hack/conformance/run.sh

conformance-node: binary ## Kubernetes' suite of a node on its own machine (test/e2e_node) against the agent: the score, and what failed; FOCUS="MirrorPod"
	hack/docker-up.sh
	MIRRORLET=$(BINARY) hack/conformance/node.sh

conformance-api: binary ## Kubernetes' specs of kubectl and of an API server against the embedded API: the score, and what failed; FOCUS="Watchers"
	hack/docker-up.sh
	MIRRORLET=$(BINARY) hack/conformance/api.sh

kube: ## etcd, kube-apiserver and the other programs of a control plane, built once (some minutes)
	hack/kube-build.sh
	hack/metrics-server-build.sh

cluster-up: ## a Kubernetes control plane of this machine, for `mirrorlet run --kubeconfig`
	hack/cluster-up.sh

cluster-down: ## stop the control plane that `make cluster-up` started
	hack/cluster-down.sh

up: ## Docker Engine and test images only
	hack/docker-up.sh
	hack/images.sh

down: ## stop the dockerd that `make up` started, and that of `make test-engine29`
	hack/docker-down.sh
	hack/engine29-down.sh
