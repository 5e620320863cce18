# Entry points of the repository. Continuous integration calls only these. Each target installs what it needs (dev/setup.sh).

.DEFAULT_GOAL := help
SHELL := /bin/bash
# Arguments for the server: make run ARGS="--set log.level=debug"
ARGS ?=
# Run time of each fuzz target in seconds.
FUZZ_SECONDS ?= 60
# Number of simulated runs, and the seed of the first one.
SEEDS ?= 1000
FROM ?= 1
# Run time of `make attack` in seconds.
ATTACK_SECONDS ?= 600
# Factor of `make soak`: how many times more seeds, kills and cases than `make test`.
SCALE ?= 20
# Durability of the simulated nodes: fsync, os or none.
DURABILITY ?= fsync

# Program to package instead of building one, for `make dist`: make dist BINARY=target/release/tidewire
BINARY ?=

.PHONY: help run test soak attack lint bench fuzz simulate docs generate dist dist-test setup

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /make \1\t/' | expand -t 16

# The profile `fast` compiles in minutes after a clone and in seconds after a change. It has no export as Parquet, because
# the libraries for it take long to compile.
run: setup ## Build and start the server
	@dev/cargo run --profile fast --quiet -p tidewire --no-default-features --features standard -- $(ARGS)

test: setup ## Run all tests: the workspace, real clients, the console
	@dev/setup.sh test
	@dev/test

soak: setup ## Run the same tests for hours, with SCALE times as many seeds, kills and cases
	@dev/setup.sh test
	@TIDEWIRE_TEST_SCALE=$(SCALE) dev/test
	@dev/attack $(ATTACK_SECONDS)

attack: setup ## Run all attacks at once for ATTACK_SECONDS, and check latency, messages and memory
	@dev/attack $(ATTACK_SECONDS)

lint: setup ## Check formatting, lints, scripts and conventions
	@dev/setup.sh lint
	dev/lint

bench: setup ## Compare with other brokers on this machine
	@dev/bench

fuzz: setup ## Fuzz each decoder for FUZZ_SECONDS
	@dev/fuzz $(FUZZ_SECONDS)

simulate: setup ## Simulate nodes with faults and crashes: SEEDS runs with one DURABILITY, from seed FROM
	@dev/cargo run --profile simulate --quiet -p tidewire-simulation -- --seeds $(SEEDS) --from $(FROM) --durability $(DURABILITY)

docs: setup ## Build the book as a web site in target/book
	@dev/setup.sh docs
	@. dev/lib.sh && mdbook build docs

generate: setup ## Write the pages and files that are generated from the code
	@for page in $$(dev/cargo run --quiet -p tidewire -- reference); do \
		dev/cargo run --quiet -p tidewire -- reference $$page > docs/reference/$$page.md.new && \
		mv docs/reference/$$page.md.new docs/reference/$$page.md || exit 1; \
	done
	@dev/cargo run --quiet -p tidewire -- config example > tidewire.example.toml.new
	@mv tidewire.example.toml.new tidewire.example.toml

dist: setup ## Build the files of a release in target/dist: archives, packages, container image, chart
	@dev/setup.sh dist
	@dev/dist $(if $(BINARY),--binary $(BINARY))

dist-test: ## Test the files in target/dist; needs root
	@dev/setup.sh dist-test
	@dev/dist-test

setup: ## Install missing programs for a build
	@dev/setup.sh build
