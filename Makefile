# Fieldstone. `make help` lists what there is.

CARGO ?= cargo
PYTHON := $(firstword $(wildcard /usr/bin/python3) python3)
TARGET := $(or $(CARGO_TARGET_DIR),target)
FIELDSTONE := $(TARGET)/release/fieldstone
# Seeds of the seeded world that `make test` runs.
SEEDS ?= 0..2000
# Seconds that `make fuzz` searches, per target.
FUZZ_SECONDS ?= 300

.DEFAULT_GOAL := help
.PHONY: help quickstart build test tools lint unit simulate scenarios bench fuzz-smoke fuzz clean

help: ## This list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

quickstart: build ## From nothing to a protected block device, in one page; needs a Rust toolchain only
	$(FIELDSTONE) quickstart

build: ## The release build
	$(CARGO) build --release --locked -p fieldstone

# In this order, so that what is wrong shows as early as it can.
test: ## Every test: style, unit tests, 2,000 seeds, and scenarios with real clients
	@$(MAKE) --no-print-directory tools
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory unit
	@$(MAKE) --no-print-directory build
	@$(MAKE) --no-print-directory simulate
	@$(MAKE) --no-print-directory scenarios

tools: ## Debian's NBD clients that the scenarios use; asks apt for those that are missing
	tests/install-tools

lint: ## Formatting and lints, denied
	$(CARGO) fmt --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

unit: ## Unit and property tests of all crates, and a bounded smoke run of the fuzz targets' bodies
	$(CARGO) test --workspace --locked

simulate: build ## Seeds SEEDS (0..2000) of the seeded world
	$(FIELDSTONE) sim --seeds $(SEEDS) --open crates/sim/open-seeds.txt

scenarios: build ## Scenarios with real clients; `tests/run NAME …` runs some of them
	FIELDSTONE=$(abspath $(FIELDSTONE)) $(PYTHON) tests/run

bench: build ## Our numbers beside those of nbdkit and qemu-nbd, one JSON line per row
	$(FIELDSTONE) bench nbd

fuzz-smoke: ## A bounded, seeded run of the properties that the fuzz targets check
	$(CARGO) test --locked -p fieldstone-nbd --test protocol smoke
	$(CARGO) test --locked -p fieldstone-proto fuzz

fuzz: ## A real search with cargo-fuzz, FUZZ_SECONDS long; needs cargo-fuzz and a nightly toolchain
	$(CARGO) run --manifest-path fuzz/Cargo.toml --bin nbd_seeds fuzz/corpus/nbd_session
	$(CARGO) +nightly fuzz run nbd_session -- -max_len=262144 -max_total_time=$(FUZZ_SECONDS)
	$(CARGO) run --manifest-path fuzz/Cargo.toml --bin node_wire_seeds fuzz/corpus/node_wire
	$(CARGO) +nightly fuzz run node_wire -- -max_len=65536 -max_total_time=$(FUZZ_SECONDS)

clean: ## Remove what was built
	$(CARGO) clean
