# Fieldstone. `make help` lists what there is.

CARGO ?= cargo
PYTHON := $(firstword $(wildcard /usr/bin/python3) python3)
TARGET := $(or $(CARGO_TARGET_DIR),target)
# The profile of what is built to run: `release` for users; tests run what they have built (`dev`).
PROFILE ?= release
BUILT = $(TARGET)/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))
FIELDSTONE = $(BUILT)/fieldstone
# Verilator and Yosys: see rtl/install-tools.
HDL := $(TARGET)/hdl
VERILATOR := $(HDL)/bin/verilator
# The device is part of the build where Verilator is.
FEATURES = $(shell $(VERILATOR) --getenv VERILATOR_ROOT >/dev/null 2>&1 && \
	echo --features fieldstone/rtl)
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
# Where `make install-codes` and `install-block` install; DESTDIR stands before it, for packagers.
PREFIX ?= /usr/local
# The release of Ceph that the plug-in is for, and the folder where its daemons look for plug-ins.
CEPH_VERSION ?= $(shell ceph --version 2>/dev/null | sed -n 's/^ceph version \([^ ]*\).*/\1/p')
CEPH_PLUGINS ?= $(firstword $(wildcard /usr/lib/*/ceph/erasure-code /usr/lib64/ceph/erasure-code) \
	$(PREFIX)/lib/ceph/erasure-code)
CXX ?= g++
# Seeds of the seeded world that `make test` runs, and those for each regenerating code.
SEEDS ?= 0..1000
CODE_SEEDS ?= 0..25
# Options of `tests/run`: `--all` for every code and place of the nodes, `--long` for what takes minutes.
SCENARIO_OPTIONS ?=
# Seconds that `make fuzz` searches, per target.
FUZZ_SECONDS ?= 300

.DEFAULT_GOAL := help
.PHONY: help quickstart build test-build unit-build test tools hdl-tools rtl lint unit bindings \
	install-codes install-block \
	ceph-plugin install-ceph-plugin ceph-plugin-harness ceph-plugin-for-tests \
	bench-ceph-plugin simulate scenarios \
	test-ceph test-net bench fuzz-smoke fuzz clean

help: ## This list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

quickstart: build ## From nothing to a protected block device, in one page; needs a Rust toolchain only
	$(FIELDSTONE) quickstart

build: ## The release build; with the FPGA device if `make hdl-tools` was run
	$(CARGO) build --profile $(PROFILE) --locked -p fieldstone $(FEATURES)

# Runs the stages $(1), one after the other, each with its time at the end.
stages = +@$(foreach stage,$(1),begun=$$(date +%s) && $(MAKE) --no-print-directory $(stage) && \
	echo "$(stage): $$(($$(date +%s) - begun)) s" &&) true

# `lint` needs none of the tools, whose installation mostly waits for the network. The tests of `unit`
# leave a quarter of two CPUs idle, and the scenarios leave a third. `rtl` begins with proofs, so
# cargo is free when `unit` asks it.
test: ## Every test: style, unit tests, 1,000 seeds, and scenarios with real clients
	+@$(PYTHON) tests/together $(MAKE) lint tools
	$(call stages,unit-build)
	+@$(PYTHON) tests/together $(MAKE) unit rtl
	$(call stages,bindings)
	+@$(PYTHON) tests/together $(MAKE) scenarios simulate

# Everything that tests run, with one choice of packages and features, so that dependencies are
# compiled once.
BUILD_TESTS = env -u CARGO_BUILD_TARGET $(CARGO) build --workspace --locked $(FEATURES) \
	--lib --bins --tests --examples

# `make scenarios PROFILE=release` has them run the command as users have it.
bindings simulate scenarios test-ceph test-net: export PROFILE = dev

# The C libraries get the names that `bindings` gives them, and so are not linked again.
test-build:
	FIELDSTONE_SONAME=yes $(BUILD_TESTS)
	$(if $(filter dev,$(PROFILE)),,$(MAKE) --no-print-directory build)

tools: hdl-tools ## NBD clients and Ceph for the scenarios; asks apt for those that are missing
	tests/install-tools

hdl-tools: ## Verilator and Yosys (Python packages, in the build's output), for the FPGA device
	rtl/install-tools $(HDL)

lint: ## Formatting, lengths of lines, links of documents, and lints, denied
	$(CARGO) fmt --check
	$(PYTHON) tests/check-lines
	$(PYTHON) tests/check-links
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

# This also builds the C libraries, which cargo does not build for their tests.
unit-build:
	$(BUILD_TESTS)

unit: unit-build ## Unit and property tests of all crates, and a bounded smoke run of the fuzz targets' bodies
	FIELDSTONE_LIBRARIES=$(abspath $(TARGET))/debug $(CARGO) test --workspace --locked $(FEATURES)

rtl: ## Proofs, lint, test benches and line coverage of the RTL; skipped without Verilator
	CARGO="$(CARGO)" rtl/check $(TARGET)

bindings: ## The libraries from C and Python, installed as their users do; skipped where tools are missing
	CARGO="$(CARGO)" FEATURES="$(FEATURES)" tests/bindings

install-codes: ## The codes as a C library, with header and pkg-config file, into PREFIX (/usr/local)
	$(call install-library,codes-c,fieldstone_codes)

install-block: ## Block devices inside the caller's process as a C library, into PREFIX (/usr/local)
	$(call install-library,embed-c,fieldstone_block)

CEPH_PLUGIN := $(TARGET)/ceph-plugin
CEPH_PLUGIN_SOURCES := crates/ceph-plugin/cxx
CEPH_PLUGIN_FLAGS = -std=c++17 -O2 -Wall -Wextra -DFIELDSTONE_CEPH_VERSION='"$(CEPH_VERSION)"' \
	-DFIELDSTONE_CEPH_MAJOR=$(firstword $(subst ., ,$(CEPH_VERSION)))

ceph-plugin: ## libec_fieldstone.so for the OSDs of Ceph CEPH_VERSION (default: the one installed here)
	@test -n "$(CEPH_VERSION)" || { echo "No Ceph is installed here: name the release that your \
	cluster has, for example CEPH_VERSION=16.2.15 (ceph --version shows it there)" >&2; exit 1; }
	@echo '#include <rados/buffer.h>' | $(CXX) -std=c++17 -x c++ -fsyntax-only - || { echo "The \
	plug-in needs a C++ compiler and <rados/buffer.h> of Ceph $(CEPH_VERSION): install g++ and \
	libradospp-dev" >&2; exit 1; }
	$(CARGO) rustc --profile $(PROFILE) --locked -p fieldstone-ceph-plugin --crate-type staticlib
	mkdir -p $(CEPH_PLUGIN)
	$(CXX) $(CEPH_PLUGIN_FLAGS) -fPIC -fvisibility=hidden -shared -s \
		-o $(CEPH_PLUGIN)/libec_fieldstone.so $(CEPH_PLUGIN_SOURCES)/plugin.cc \
		$(BUILT)/libfieldstone_ceph_plugin.a \
		-Wl,--version-script=$(CEPH_PLUGIN_SOURCES)/plugin.map -Wl,--gc-sections
	@echo "$(CEPH_PLUGIN)/libec_fieldstone.so is for Ceph $(CEPH_VERSION)."
	@echo "Every monitor and OSD needs it in $(CEPH_PLUGINS)"
	@echo "(make install-ceph-plugin copies it there on this machine)."

install-ceph-plugin: ceph-plugin ## The plug-in, into CEPH_PLUGINS (the folder of Ceph's own plug-ins)
	install -d $(DESTDIR)$(CEPH_PLUGINS)
	install -m 644 $(CEPH_PLUGIN)/libec_fieldstone.so $(DESTDIR)$(CEPH_PLUGINS)

# What tests/ceph_plugin.py needs, where it can be built.
ceph-plugin-for-tests:
	@if command -v ceph >/dev/null && command -v $(CXX) >/dev/null && \
		echo '#include <rados/buffer.h>' | $(CXX) -std=c++17 -x c++ -fsyntax-only - 2>/dev/null; \
	then $(MAKE) --no-print-directory ceph-plugin-harness; \
	else echo "ceph-plugin: skipped, without Ceph, a C++ compiler or <rados/buffer.h>"; fi

# Programs that load plug-ins as an OSD does. Ceph's plug-ins need symbols of libceph-common.
ceph-plugin-harness: ceph-plugin
	for name in compare bench; do $(CXX) $(CEPH_PLUGIN_FLAGS) -rdynamic -o $(CEPH_PLUGIN)/$$name \
		crates/ceph-plugin/harness/$$name.cc crates/ceph-plugin/harness/host.cc \
		$(CEPH_PLUGINS)/../libceph-common.so.2 -lrados -ldl \
		-Wl,-rpath,$(abspath $(CEPH_PLUGINS)/..) || exit 1; done
	rm -rf $(CEPH_PLUGIN)/own && mkdir $(CEPH_PLUGIN)/own
	for name in fieldstone jerasure isa clay; do \
		cp $(CEPH_PLUGIN)/libec_fieldstone.so $(CEPH_PLUGIN)/own/libec_$$name.so || exit 1; done

bench-ceph-plugin: ceph-plugin-harness ## The plug-in's rates and those of Ceph's, in JSON lines
	$(CEPH_PLUGIN)/bench $(CEPH_PLUGINS) $(CEPH_PLUGIN)/own

# Builds the library $(2) of the crate $(1), and installs it.
define install-library
	FIELDSTONE_SONAME=yes $(if $(filter dev,$(PROFILE)),$(BUILD_TESTS),\
		$(CARGO) build --profile $(PROFILE) --locked -p fieldstone-$(1))
	install -d $(DESTDIR)$(PREFIX)/include $(DESTDIR)$(PREFIX)/lib/pkgconfig
	install -m 644 crates/$(1)/include/$(2).h $(DESTDIR)$(PREFIX)/include
	install -m 644 $(BUILT)/lib$(2).a $(DESTDIR)$(PREFIX)/lib
	install -m 755 $(BUILT)/lib$(2).so $(DESTDIR)$(PREFIX)/lib/lib$(2).so.$(VERSION)
	strip --strip-debug $(DESTDIR)$(PREFIX)/lib/lib$(2).so.$(VERSION)
	ln -sf lib$(2).so.$(VERSION) $(DESTDIR)$(PREFIX)/lib/lib$(2).so.0
	ln -sf lib$(2).so.0 $(DESTDIR)$(PREFIX)/lib/lib$(2).so
	sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|' crates/$(1)/$(2).pc.in \
		> $(DESTDIR)$(PREFIX)/lib/pkgconfig/$(2).pc
endef

simulate: test-build ## Seeds SEEDS (0..1000) of the seeded world, and CODE_SEEDS with regenerating codes
	$(FIELDSTONE) sim --seeds $(SEEDS)
	$(FIELDSTONE) sim --seeds $(CODE_SEEDS) --code zigzag:4+2
	$(FIELDSTONE) sim --seeds $(CODE_SEEDS) --code clay:4+2
	$(FIELDSTONE) sim --seeds $(CODE_SEEDS) --code zigzag:2+2
	$(FIELDSTONE) sim --seeds $(CODE_SEEDS) --code clay:2+2

scenarios: test-build ceph-plugin-for-tests ## Scenarios with real clients; `tests/run NAME …` runs some, SCENARIO_OPTIONS=--all more
	FIELDSTONE=$(abspath $(FIELDSTONE)) $(PYTHON) tests/run $(SCENARIO_OPTIONS)

# One case at a time: each makes a cluster. The long ones take some minutes each.
test-ceph: test-build ceph-plugin-for-tests ## Scenarios with real Ceph clusters, the long ones too; asks apt for Ceph where it is missing
	tests/install-tools
	FIELDSTONE=$(abspath $(FIELDSTONE)) $(PYTHON) tests/run --long --jobs 1 \
		$(basename $(notdir $(wildcard tests/ceph_*.py)))

test-net: test-build ## Nodes on machines of their own, in network namespaces: every way of replication, faults of the network, strangers; needs root
	tests/install-tools
	FIELDSTONE=$(abspath $(FIELDSTONE)) $(PYTHON) tests/run --long --jobs 1 network strangers \
		replays clients_network

bench: build ## Our numbers and those of nbdkit and qemu-nbd, one JSON line per row
	$(FIELDSTONE) bench nbd

fuzz-smoke: ## A bounded, seeded run of the properties that the fuzz targets check
	$(CARGO) test --locked -p fieldstone-nbd --test protocol smoke
	$(CARGO) test --locked -p fieldstone-proto fuzz
	$(CARGO) test --locked -p fieldstone-crush --test smoke
	$(CARGO) test --locked -p fieldstone-files --test smoke
	$(CARGO) test --locked -p fieldstone-rados --test smoke
	$(CARGO) test --locked -p fieldstone-rbd --test smoke
	$(CARGO) test --locked -p fieldstone-luks --test smoke
	$(CARGO) test --locked -p fieldstone-cluster-model --test hostile

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
	$(CARGO) run --manifest-path fuzz/Cargo.toml --bin ceph_seeds fuzz/corpus
	$(CARGO) +nightly fuzz run ceph_frames -- -max_len=8192 -max_total_time=$(FUZZ_SECONDS)
	$(CARGO) +nightly fuzz run ceph_payload -- -max_len=2048 -max_total_time=$(FUZZ_SECONDS)
	$(CARGO) +nightly fuzz run ceph_text -- -max_len=4096 -max_total_time=$(FUZZ_SECONDS)
	$(CARGO) +nightly fuzz run rbd_answer -- -max_len=1024 -max_total_time=$(FUZZ_SECONDS)
	$(CARGO) +nightly fuzz run luks_header -- -max_len=8192 -max_total_time=$(FUZZ_SECONDS)

clean: ## Remove what was built
	$(CARGO) clean
