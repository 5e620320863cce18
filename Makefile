# The entry points of the repository; continuous integration calls nothing else. Each does its own set-up (dev/setup.sh).

.DEFAULT_GOAL := help
SHELL := /bin/bash
# What goes to the server: make run ARGS="--set log.level=debug"
ARGS ?=
# Seconds per fuzz target.
FUZZ_SECONDS ?= 60
# Runs of the simulator, from the first number on.
SEEDS ?= 1000
FROM ?= 1
# How much larger than in `make test` the sizes of `make soak` are.
SCALE ?= 20
# What the simulated nodes promise to keep: fsync, os or none.
DURABILITY ?= fsync

.PHONY: help run test soak lint bench fuzz simulate docs generate setup

help: ## Say what there is
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):[^#]*## /make \1\t/' | expand -t 16

# The profile `fast` compiles in minutes after a clone and in seconds after a change. It leaves out the export as Parquet, whose
# libraries take long to compile.
run: setup ## Build and start the broker
	@dev/cargo run --profile fast --quiet -p tidewire --no-default-features -- $(ARGS)

test: setup ## Run every test: the workspace, real clients, the console
	@dev/setup.sh test
	@dev/test

soak: setup ## Run the same tests with SCALE times as many seeds, kills and cases, for hours
	@dev/setup.sh test
	@TIDEWIRE_TEST_SCALE=$(SCALE) dev/test

lint: setup ## Formatting, lints, scripts, rules of the house
	@dev/setup.sh lint
	dev/lint

bench: setup ## Compare with other brokers on this machine
	@dev/bench

fuzz: setup ## Fuzz every decoder for FUZZ_SECONDS each
	@dev/fuzz $(FUZZ_SECONDS)

simulate: setup ## Run SEEDS simulated nodes of one DURABILITY with faults and crashes, from seed FROM on
	@dev/cargo run --profile simulate --quiet -p tidewire-simulation -- --seeds $(SEEDS) --from $(FROM) --durability $(DURABILITY)

docs: setup ## Build the book as a web site in target/book
	@dev/setup.sh docs
	@. dev/lib.sh && mdbook build docs

generate: setup ## Write the pages and files that are generated from definitions in the code
	@for page in $$(dev/cargo run --quiet -p tidewire -- reference); do \
		dev/cargo run --quiet -p tidewire -- reference $$page > docs/reference/$$page.md.new && \
		mv docs/reference/$$page.md.new docs/reference/$$page.md || exit 1; \
	done
	@dev/cargo run --quiet -p tidewire -- config example > tidewire.example.toml.new
	@mv tidewire.example.toml.new tidewire.example.toml

setup: ## Install what is missing
	@dev/setup.sh build
