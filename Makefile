# Fieldstone. `make help` lists what there is.

CARGO ?= cargo
PYTHON := $(firstword $(wildcard /usr/bin/python3) python3)
TARGET := $(or $(CARGO_TARGET_DIR),target)
FIELDSTONE := $(TARGET)/release/fieldstone
# Verilator and Yosys: see rtl/install-tools.
HDL := $(TARGET)/hdl
VERILATOR := $(HDL)/bin/verilator
# The device is part of the build where Verilator is.
FEATURES = $(shell $(VERILATOR) --getenv VERILATOR_ROOT >/dev/null 2>&1 && echo --features rtl)
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
# Where `make install-codes` and `install-block` install; DESTDIR stands before it, for packagers.
PREFIX ?= /usr/local
# Seeds of the seeded world that `make test` runs.
SEEDS ?= 0..2000
# Seconds that `make fuzz` searches, per target.
FUZZ_SECONDS ?= 300

.DEFAULT_GOAL := help
.PHONY: help quickstart build test tools hdl-tools rtl lint unit bindings install-codes install-block simulate scenarios \
	test-ceph bench fuzz-smoke fuzz clean

help: ## This list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

quickstart: build ## From nothing to a protected block device, in one page; needs a Rust toolchain only
	$(FIELDSTONE) quickstart

build: ## The release build; with the FPGA device if `make hdl-tools` was run
	$(CARGO) build --release --locked -p fieldstone $(FEATURES)

# In this order, so that what is wrong shows as early as it can.
STAGES = tools lint unit rtl bindings build simulate scenarios

test: ## Every test: style, unit tests, 2,000 seeds, and scenarios with real clients
	@$(foreach stage,$(STAGES),begun=$$(date +%s) && $(MAKE) --no-print-directory $(stage) && \
		echo "$(stage): $$(($$(date +%s) - begun)) s" &&) true

tools: hdl-tools ## NBD clients and Ceph for the scenarios; asks apt for those that are missing
	tests/install-tools

hdl-tools: ## Verilator and Yosys (Python packages, beside the build's output), for the FPGA device
	rtl/install-tools $(HDL)

lint: ## Formatting and lints, denied
	$(CARGO) fmt --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

# The first step also builds the C libraries, which cargo does not build for their tests.
unit: ## Unit and property tests of all crates, and a bounded smoke run of the fuzz targets' bodies
	env -u CARGO_BUILD_TARGET $(CARGO) build --workspace --locked --lib --tests
	FIELDSTONE_LIBRARIES=$(abspath $(TARGET))/debug $(CARGO) test --workspace --locked

rtl: ## Proofs, lint, test benches and line coverage of the RTL; skipped without Verilator
	CARGO="$(CARGO)" rtl/check $(TARGET)

bindings: ## The libraries from C and Python, installed as their users do; skipped where tools are missing
	tests/bindings

install-codes: ## The codes as a C library, with header and pkg-config file, into PREFIX (/usr/local)
	$(call install-library,codes-c,fieldstone_codes)

install-block: ## Block devices inside the caller's process as a C library, into PREFIX (/usr/local)
	$(call install-library,embed-c,fieldstone_block)

# Builds the library $(2) of the crate $(1), and installs it.
define install-library
	$(CARGO) rustc --release --locked -p fieldstone-$(1) --crate-type cdylib,staticlib \
		-- -C strip=debuginfo -C link-arg=-Wl,-soname,lib$(2).so.0
	install -d $(DESTDIR)$(PREFIX)/include $(DESTDIR)$(PREFIX)/lib/pkgconfig
	install -m 644 crates/$(1)/include/$(2).h $(DESTDIR)$(PREFIX)/include
	install -m 644 $(TARGET)/release/lib$(2).a $(DESTDIR)$(PREFIX)/lib
	install -m 755 $(TARGET)/release/lib$(2).so $(DESTDIR)$(PREFIX)/lib/lib$(2).so.$(VERSION)
	ln -sf lib$(2).so.$(VERSION) $(DESTDIR)$(PREFIX)/lib/lib$(2).so.0
	ln -sf lib$(2).so.0 $(DESTDIR)$(PREFIX)/lib/lib$(2).so
	sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|' crates/$(1)/$(2).pc.in \
		> $(DESTDIR)$(PREFIX)/lib/pkgconfig/$(2).pc
endef

simulate: build ## Seeds SEEDS (0..2000) of the seeded world, and some with regenerating codes
	$(FIELDSTONE) sim --seeds $(SEEDS)
	$(FIELDSTONE) sim --seeds 0..50 --code zigzag:4+2
	$(FIELDSTONE) sim --seeds 0..50 --code clay:4+2
	$(FIELDSTONE) sim --seeds 0..50 --code zigzag:2+2
	$(FIELDSTONE) sim --seeds 0..50 --code clay:2+2

scenarios: build ## Scenarios with real clients; `tests/run NAME …` runs some of them
	FIELDSTONE=$(abspath $(FIELDSTONE)) $(PYTHON) tests/run

# One case at a time: each makes a cluster. The long ones take some minutes each.
test-ceph: build ## Scenarios with real Ceph clusters, the long ones too; asks apt for Ceph where it is missing
	tests/install-tools
	FIELDSTONE=$(abspath $(FIELDSTONE)) $(PYTHON) tests/run --long --jobs 1 \
		$(basename $(notdir $(wildcard tests/ceph_*.py)))

bench: build ## Our numbers beside those of nbdkit and qemu-nbd, one JSON line per row
	$(FIELDSTONE) bench nbd

fuzz-smoke: ## A bounded, seeded run of the properties that the fuzz targets check
	$(CARGO) test --locked -p fieldstone-nbd --test protocol smoke
	$(CARGO) test --locked -p fieldstone-proto fuzz
	$(CARGO) test --locked -p fieldstone-crush --test smoke
	$(CARGO) test --locked -p fieldstone-files --test smoke

fuzz: ## A real search with cargo-fuzz, FUZZ_SECONDS long; needs cargo-fuzz and a nightly toolchain
	$(CARGO) run --manifest-path fuzz/Cargo.toml --bin nbd_seeds fuzz/corpus/nbd_session
	$(CARGO) +nightly fuzz run nbd_session -- -max_len=262144 -max_total_time=$(FUZZ_SECONDS)
	$(CARGO) run --manifest-path fuzz/Cargo.toml --bin node_wire_seeds fuzz/corpus/node_wire
	$(CARGO) +nightly fuzz run node_wire -- -max_len=65536 -max_total_time=$(FUZZ_SECONDS)
	$(CARGO) run --manifest-path fuzz/Cargo.toml --bin crush_seeds \
		fuzz/corpus/crush_binary fuzz/corpus/crush_text
	$(CARGO) +nightly fuzz run crush_binary -- -max_len=8192 -max_total_time=$(FUZZ_SECONDS)
	$(CARGO) +nightly fuzz run crush_text -- -max_len=8192 -dict=fuzz/crush_text.dict \
		-max_total_time=$(FUZZ_SECONDS)
	mkdir -p fuzz/corpus/crush_osdmap
	cp crates/crush/tests/data/osdmap/om? fuzz/corpus/crush_osdmap
	$(CARGO) +nightly fuzz run crush_osdmap -- -max_len=16384 -max_total_time=$(FUZZ_SECONDS)
	mkdir -p fuzz/corpus/crush_increment
	cp crates/crush/tests/data/osdmap/chain16/inc.* fuzz/corpus/crush_increment
	$(CARGO) +nightly fuzz run crush_increment -- -max_len=8192 -max_total_time=$(FUZZ_SECONDS)
	$(CARGO) run --manifest-path fuzz/Cargo.toml --bin code_seeds fuzz/corpus/code_folder
	$(CARGO) +nightly fuzz run code_folder -- -max_len=2048 -dict=fuzz/code_folder.dict \
		-max_total_time=$(FUZZ_SECONDS)

clean: ## Remove what was built
	$(CARGO) clean
