# Every target sets up .venv first. Requirements: make, Python >= 3.11 and a C/C++ compiler.
# To use another Python: make PYTHON=python3.13 test

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
RUNS := $(VENV)/runs
C_FILES := $(wildcard kernels/*.h kernels/*.cpp bpf/*.c bpf/*.h fuzz/*.c fuzz/*.cpp fuzz/*.h lab/*.c lab/*.h)
QUICK := $(addprefix tests/,estimators/test_contract.py estimators/test_twins.py capture/test_readers.py cli/test_cli.py)
SMALL_CAPTURE := $(firstword $(wildcard tests/data/*.pcap*))

# Five workers for two processors: tests spend half of their time waiting for servers, browsers and packets.
WORKERS := $(shell expr 5 \* $$(nproc 2>/dev/null || echo 2) / 2)
# Tests start Python hundreds of times: keep its bytecode.
unexport PYTHONDONTWRITEBYTECODE
# An ordinary user's PATH lacks administrators' programs.
export PATH := $(PATH):/usr/local/sbin:/usr/sbin:/sbin

.DEFAULT_GOAL := help
.PHONY: help demo lab fleet test quick pythons acceptance bench fuzz release deb arm prebuilt sbom hashes docs pictures site lint format clean debian-packages

help: ## Show this list
	@sed -nE 's/^([a-z]+):.*## (.*)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20

demo: $(RUNS) ## Simulate small captures and measure them
	@mkdir -p demo
	$(BIN)/wirelag simulate --packets 20000 --seed 1 -o demo/capture.pcap --truth demo/truth.parquet
	$(BIN)/wirelag info demo/capture.pcap
	$(if $(SMALL_CAPTURE),$(BIN)/wirelag info $(SMALL_CAPTURE))
	@echo
	$(BIN)/wirelag rtt demo/capture.pcap --by server --top 8 --html demo/rtt.html --format json -o demo/rtt.json
	$(BIN)/wirelag rtt demo/capture.pcap --by server --top 8
	$(BIN)/wirelag score demo/rtt.json demo/truth.parquet
	@echo
	$(BIN)/wirelag simulate --packets 20000 --seed 1 --points 2 --loss 0.005 --clock-offset 3s -o demo/up.pcap -o demo/down.pcap --quiet
	$(BIN)/wirelag oneway demo/up.pcap demo/down.pcap --interval 20s --html demo/oneway.html
	@echo
	$(BIN)/wirelag simulate --queue 0.7 --duration 200ms -o demo/before.pcap -o demo/behind.pcap --quiet
	$(BIN)/wirelag flows demo/behind.pcap --most-flows 5 --html demo/flows.html
	@echo
	$(BIN)/wirelag plan tests/data/six.json --upgrade 2 --html demo/plan.html
	@echo
	@echo "For charts, open demo/rtt.html, demo/oneway.html, demo/flows.html and demo/plan.html in a browser. Try next:"
	@echo "  $(BIN)/wirelag rtt YOUR.pcap --by server --html page.html"
	@echo "  $(BIN)/wirelag rtt YOUR.pcap --memory 16KiB    the same distribution in the memory of a switch"
	@echo "  $(BIN)/wirelag oneway HERE.pcap THERE.pcap     delay and loss between two points"
	@echo "  $(BIN)/wirelag flows THERE.pcap --upstream HERE.pcap   delay of every flow"
	@echo "  $(BIN)/wirelag info YOUR.pcap                  what wirelag can measure from your capture"
	@echo "  $(BIN)/wirelag info --port 443 YOUR.pcap       the same for a part of it"
	@echo "  $(BIN)/wirelag simulate --help                 captures with other delays, loss, reordering"
	@echo "  $(BIN)/wirelag --help                          all commands; docs/ explains them"

lab: $(INSTALLED) ## Run the whole live system on this machine, as root, until Ctrl-C (PORT=8321)
	@tests/install-debian-packages iproute2 ethtool procps util-linux
	$(BIN)/python -m lab system $(if $(PORT),--port $(PORT))

fleet: $(INSTALLED) ## Three collectors, a database and three brokers, as root, until Ctrl-C (PORT=8321)
	@tests/install-debian-packages iproute2 ethtool procps util-linux nats-server nginx-light postgresql
	$(BIN)/python -m lab fleet $(if $(PORT),--port $(PORT))

# Linters run beside the tests; their output comes last. In a fresh clone one process first compiles the tests, which
# takes 8 s of processor time: otherwise each worker would.
test: debian-packages $(INSTALLED) ## Linters and all tests except the long ones (minutes)
	@mkdir -p build
	@$(MAKE) -s -o $(INSTALLED) lint >build/lint.txt 2>&1 & lint=$$!; \
	ls tests/*/__pycache__/*-pytest-*.pyc >/dev/null 2>&1 || $(BIN)/pytest --collect-only -q >/dev/null; \
	$(BIN)/pytest -n $(WORKERS) --dist worksteal --durations 30; tests=$$?; \
	if wait $$lint; then echo "linters: no errors"; else lint=failed; cat build/lint.txt; fi; \
	[ $$tests = 0 ] && [ $$lint != failed ]

quick: $(INSTALLED) ## A minute of tests: kernels and their twins, readers, commands
	$(BIN)/pytest -q $(QUICK)

pythons: ## Build, demo and quick tests on each Python found, 3.11 to 3.14 (PYTHONS="3.12 3.13")
	@MAKE="$(MAKE)" tests/pythons $(PYTHONS)

acceptance: debian-packages $(INSTALLED) ## All tests at full length, under load, fuzz, bench (PART=WORD: by name)
	WIRELAG_ACCEPTANCE=1 $(BIN)/pytest -m "not fuzz" $(if $(PART),-k "$(PART)")
	$(if $(PART),,tests/under-load)
	$(if $(PART),,$(MAKE) fuzz bench)

bench: debian-packages $(INSTALLED) ## Measure speed and memory
	@status=0; for part in commands cores run live dataplane; do $(BIN)/python benchmarks/$$part.py || status=1; done; exit $$status

fuzz: debian-packages $(INSTALLED) ## Kernels under sanitizers: all captures, then fuzzers (SECONDS=300 each)
	$(BIN)/pytest -m fuzz
	@if echo 'int LLVMFuzzerTestOneInput(void) { return 0; }' | clang -x c -fsanitize=fuzzer,address - -o /dev/null 2>/dev/null; \
	then $(MAKE) -C fuzz run SECONDS=$(or $(SECONDS),300); \
	else echo "The fuzzers need clang and its runtime (run: apt-get install clang libclang-rt-dev): skipped."; fi

release: ## Check, then build dist/: sources, wheel, notes, bill of materials, checksums, with tools of known hashes
	$(MAKE) HASHED=1 VENV=build/release/venv build/release/venv/installed
	$(MAKE) HASHED=1 VENV=build/release/venv lint
	build/release/venv/bin/pytest -q -n 0 tests/docs/test_project.py tests/docs/test_release.py
	build/release/venv/bin/python -m tests.support.release $(or $(DIST),dist)

deb: release ## The same, and a Debian package for this Debian's Python (units, manual pages, completion)
	build/release/venv/bin/python -m tests.support.deb $(or $(DIST),dist)

arm: release ## The same, and a wheel for aarch64, cross-compiled and tried under qemu (as root, on Debian)
	build/release/venv/bin/python -m tests.support.arm $(or $(DIST),dist)

prebuilt: $(INSTALLED) ## Compile the eBPF programs for both processors into bpf/prebuilt, as releases bring them
	$(BIN)/python -m tests.support.prebuilt

sbom: $(INSTALLED) ## Write dist/wirelag.cdx.json, the software bill of materials of a release
	$(BIN)/python -m tests.support.sbom dist/wirelag.cdx.json

hashes: $(INSTALLED) ## Write constraints-hashed.txt: the pins, with the hashes of their files
	$(BIN)/python -m tests.support.hashes constraints.txt constraints-hashed.txt

docs: $(INSTALLED) ## Regenerate docs/reference/cli.md, python.md and the tables of settings
	$(BIN)/python -m tests.support.cli_reference
	$(BIN)/python -m tests.support.settings_tables
	$(BIN)/python -m tests.support.python_reference

pictures: $(INSTALLED) ## Make the pictures of the documentation again, of pages in Chromium and of a terminal
	$(BIN)/python -m tests.support.pictures

site: $(INSTALLED) ## Build the documentation as a site, offline: build/site/index.html
	$(BIN)/python -m tests.support.site build/site

lint: $(INSTALLED) ## Check style, types, imports and C formatting
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run -Werror $(C_FILES)

format: $(INSTALLED) ## Format Python and C
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/clang-format -i $(C_FILES)

clean: ## Remove all generated files, also .venv
	rm -rf .venv build dist demo bpf/prebuilt fuzz/build lab/build .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests lab -name __pycache__ -type d -prune -exec rm -rf {} +

# eBPF programs need clang: rebuild the package if clang was installed since.
debian-packages:
	@tests/install-debian-packages
	@! command -v clang >/dev/null || ls $(VENV)/lib/python*/site-packages/wirelag/bpf/*.o >/dev/null 2>&1 || rm -f $(INSTALLED)

# With HASHED=1 everything is installed first, and only files whose hash is known.
TOOLS := -c constraints.txt scikit-build-core nanobind cmake ninja
TOOLS_HASHED := $(if $(HASHED),--require-hashes --no-deps -r constraints-hashed.txt)

# Build tools are installed first, with the same pins, so the build needs no isolated environment.
# Each environment has its own build folder, since CMake caches the Python for which it built.
# Folders are prerequisites because adding a module changes its folder, and a new module must be installed.
SOURCES := pyproject.toml CMakeLists.txt constraints.txt $(if $(HASHED),constraints-hashed.txt) $(wildcard kernels/* bpf/*.* deploy/*) $(shell find src/wirelag -type d -not -name __pycache__)
define install
	@echo "Installing wirelag$(if $(filter dev,$(1)), and its tools) into $(VENV) (a minute or two the first time)"
	$(BIN)/python -m pip install -q --disable-pip-version-check $(or $(TOOLS_HASHED),$(TOOLS))
	$(BIN)/python -m pip install -q --disable-pip-version-check $(if $(HASHED),--no-deps,-c constraints.txt) --config-settings=build-dir=$(VENV)/build --no-build-isolation -e '.[$(1)]'
	@$(BIN)/python -m compileall -q src/wirelag # bytecode folders created later would look like a change
	@touch $(RUNS) $(if $(filter dev,$(1)),$(INSTALLED))
endef

$(INSTALLED): $(SOURCES) | $(BIN)/python
	$(call install,dev)

# The program alone, with what reads and writes Parquet: half the size.
$(RUNS): $(SOURCES) | $(BIN)/python
	$(call install,tables)

HAS_VENV := import ensurepip, os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "wirelag needs Python 3.11 or later. Name one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c '$(HAS_VENV)' 2>/dev/null || tests/install-debian-packages python3-venv python3-dev
	@$(PYTHON) -c '$(HAS_VENV)' 2>/dev/null || \
	  { echo "$(PYTHON) lacks venv or Python.h. As root: apt-get install python3-venv python3-dev. Or: make PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
