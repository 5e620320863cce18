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
# What the simulated nodes promise to keep: fsync, os or none.
DURABILITY ?= fsync

.PHONY: help run test lint bench fuzz simulate generate setup

help: ## Say what there is
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):[^#]*## /make \1\t/' | expand -t 16

# `fast` takes some minutes after a clone and seconds after a change; releases are built with the `release` profile.
run: setup ## Build and start the broker
	@dev/cargo run --profile fast --quiet -p tidewire -- $(ARGS)

test: setup ## Run every test: the workspace, then real clients
	@dev/setup.sh test
	dev/cargo test --workspace
	dev/cargo test --workspace --features tidewire-simulation/planted-faults --test planted
	@dev/interop
	@dev/ui test

lint: setup ## Formatting, lints, scripts, rules of the house
	@dev/setup.sh lint
	dev/lint

bench: setup ## Compare with other brokers on this machine
	@dev/bench

fuzz: setup ## Fuzz every decoder for FUZZ_SECONDS each
	@dev/fuzz $(FUZZ_SECONDS)

simulate: setup ## Run SEEDS simulated nodes of one DURABILITY with faults and crashes, from seed FROM on
	@dev/cargo run --profile simulate --quiet -p tidewire-simulation -- --seeds $(SEEDS) --from $(FROM) --durability $(DURABILITY)

generate: setup ## Write what is generated from the option definitions
	dev/cargo run --quiet -p tidewire -- config reference > docs/configuration.md.new
	mv docs/configuration.md.new docs/configuration.md
	dev/cargo run --quiet -p tidewire -- config example > tidewire.example.toml.new
	mv tidewire.example.toml.new tidewire.example.toml

setup: ## Install what is missing
	@dev/setup.sh build
