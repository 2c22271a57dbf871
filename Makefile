# Everything runs from .venv, which is made from requirements.lock on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTEST_ARGS ?=
# Thousands of generated inputs each: watching their lines takes three times as long and covers nothing more.
GENERATED := tests/config/test_mutants.py tests/server/http/test_json_fuzz.py
# Floors of branch coverage by package, and what must have no branch without a test: decisions, their records, the stores.
FLOORS := errors.py:100 approvals/*:100 artifacts/*.py:100 artifacts/formats/*:98 audit/*:100 engine/*:97 identity/*:100 \
	mcp/*:97 model/*:100 policy/*:98 storage/*:96
WHOLE := mcp/http_bodies.py policy/access.py policy/access_answer.py policy/casbin/* policy/forward_clock.py policy/grants/* \
	policy/limit_claims.py policy/limits.py policy/stop_list.py engine/turn_pipeline/* engine/gates/call_limits.py \
	engine/gates/guard.py engine/gates/read_guard.py engine/handler.py engine/records/auditor.py \
	engine/records/known_refusals.py engine/turns/implicit_turns.py app/jobs/audit_retention.py \
	storage/unwritten_outcomes.py storage/cache_invalidation.py storage/rate_*.py storage/shared_file.py \
	storage/sql/approval*.py storage/sql/audit_log.py storage/sql/engine_base.py storage/sql/grants.py \
	storage/sql/quotas.py storage/sql/postgres/* storage/sql/sqlite/engine.py storage/sql/sqlite/single_call*.py \
	storage/sql/stop_list.py storage/sql/store.py
HELPDESK_PORT ?= 8091
SERVE_ARGS ?=
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' gateway/__init__.py)
ENGINE ?= podman
IMAGE ?= agent-gateway:$(VERSION)
SBOM_HOME ?= build/sbom
SBOM_TOOL := $(SBOM_HOME)/bin/cyclonedx-py

.DEFAULT_GOAL := help

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=python3.x")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
# The lock is whole, so nothing is left to resolve: what was released since cannot matter.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	$(BIN)/python -m pip --quiet --disable-pip-version-check check
	@touch $@

.PHONY: serve
serve: $(READY) ## start the gateway on the example configuration, with the ticket service that its tools call (HELPDESK_PORT, SERVE_ARGS="--port …")
	@HELPDESK_TOKEN=$$($(BIN)/python -c 'import secrets; print(secrets.token_urlsafe(24))'); export HELPDESK_TOKEN; \
	REPOS_DIR='$(CURDIR)'; export REPOS_DIR; \
	exec $(BIN)/python -m gateway.examples.helpdesk_service --port $(HELPDESK_PORT) -- $(BIN)/gateway serve $(SERVE_ARGS)

# The suite starts Python by the hundred: what was compiled once is kept, whatever the environment says.
test test-long: export PYTHONDONTWRITEBYTECODE =

.PHONY: test
test: $(READY) ## run the whole suite in parallel (COVERAGE=1 also measures and enforces coverage)
	.ci/in-memory $(BIN)/pytest -n auto --dist worksteal $(if $(COVERAGE),--cov --cov-report= $(addprefix --ignore=,$(GENERATED))) $(PYTEST_ARGS)
ifdef COVERAGE
	.ci/in-memory $(BIN)/pytest -n auto --dist worksteal $(PYTEST_ARGS) $(GENERATED)
	@set -f; for floor in $(FLOORS) $(addsuffix :100,$(WHOLE)); do \
		echo "gateway/$$floor"; \
		$(BIN)/coverage report --include="gateway/$${floor%:*}" --fail-under=$${floor#*:} || exit 1; \
	done
endif

.PHONY: test-long
test-long: $(READY) ## kill gateways 390 times, workers 40 times and upstream servers 1,000 times; reload 100 times; trace 10,000 calls; results of a gigabyte; break 50,000 projects; send a million hostile requests; compare ten million decisions, a million pairs of an access review, and grants in 20,000 random worlds with the reference; replay 100,000 calls (most of two hours)
	KILL_ROUNDS=200 $(BIN)/pytest -q tests/end_to_end/durability/test_kills.py tests/end_to_end/audit/test_crashes.py
	TELEMETRY_CALLS=10000 $(BIN)/pytest -q tests/end_to_end/telemetry/test_random_calls.py
	LARGE_BYTES=1073741824 $(BIN)/pytest -q tests/end_to_end/server/test_large_results.py tests/end_to_end/storage/test_bucket.py -k memory
	REPLICA_ROUNDS=50 $(BIN)/pytest -q tests/end_to_end/storage/test_postgres_replicas.py
	KILL_SECONDS=120 $(BIN)/pytest -q -s tests/end_to_end/storage/test_replica_kills.py
	$(BIN)/pytest -q -s tests/end_to_end/storage/test_database_faults.py
	RELOADS=100 $(BIN)/pytest -q -s tests/end_to_end/server/test_reload.py -k under_load
	$(BIN)/python tests/conformance/replicas.py
	RESTART_ROUNDS=1000 $(BIN)/pytest -q tests/backends/mcp/test_stdio.py -k left_behind
	MUTANTS=50000 $(BIN)/pytest -q -n auto tests/config/test_mutants.py
	FUZZ_CASES=1000000 $(BIN)/pytest -q -s tests/end_to_end/security/test_listener_fuzz.py tests/server/http/test_json_fuzz.py
	$(BIN)/python tests/policy/casbin/differential.py
	GRANT_CASES=20000 $(BIN)/pytest -q --show-capture=no tests/policy/grants/test_grant_properties.py
	REPLAY_CALLS=100000 $(BIN)/pytest -q -s tests/review/replay/test_present_policy.py
	ACCESS_PAIRS=1000000 $(BIN)/pytest -q tests/review/access/test_effective_access.py

.PHONY: conformance
conformance: $(READY) ## run the official MCP conformance suite (needs npm; installs Node 22 into a cache folder)
	$(BIN)/python tests/conformance/run.py

.PHONY: lint
lint: $(READY) ## check style, formatting and the length of lines in documents
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tests.documents.line_lengths

.PHONY: types
types: $(READY) ## check types, strictly
	$(BIN)/mypy

.PHONY: bench
bench: $(READY) ## print what calls cost as users run them, next to FastMCP, and what operations, decisions and configurations cost
	$(BIN)/python benchmarks/serving.py
	$(BIN)/python benchmarks/instructions.py $$(command -v valgrind > /dev/null || echo --without-valgrind)
	$(BIN)/python benchmarks/core.py
	$(BIN)/python benchmarks/authz.py
	$(BIN)/python benchmarks/config.py --sizes 10 100 1000
	$(BIN)/python benchmarks/access_review.py --sizes 100x100 1000x1000
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/storage.py
	$(BIN)/python benchmarks/storages.py
	$(BIN)/python benchmarks/replicas.py
	$(BIN)/python benchmarks/audit.py
	$(BIN)/python benchmarks/gates.py
	$(BIN)/python benchmarks/limits.py
	$(BIN)/python benchmarks/review.py
	$(BIN)/python benchmarks/telemetry.py
	$(BIN)/python benchmarks/large.py
	$(BIN)/python benchmarks/upstreams.py
	$(BIN)/python benchmarks/overload.py

PIN := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate

.PHONY: lock
lock: $(READY) ## pin every dependency anew, with hashes (UPGRADE=1 takes the newest versions)
	$(PIN) $(if $(UPGRADE),--upgrade) --all-extras --group dev -o requirements.lock pyproject.toml
	$(PIN) --constraint requirements.lock --all-extras -o requirements-runtime.lock pyproject.toml
	$(PIN) --constraint requirements.lock --group build -o requirements-build.lock

.PHONY: image
image: ## build the container image (BASE_IMAGE=NAME@sha256:DIGEST, IMAGE=NAME:TAG, ENGINE=podman or docker)
	@case '$(BASE_IMAGE)' in *@sha256:*) ;; *) echo 'name the base by its digest: make image BASE_IMAGE=NAME@sha256:DIGEST' >&2; exit 2;; esac
	$(ENGINE) build --file Containerfile --build-arg BASE_IMAGE='$(BASE_IMAGE)' --build-arg VERSION='$(VERSION)' \
		--build-arg REVISION="$$(git rev-parse HEAD)" --tag '$(IMAGE)' $(IMAGE_ARGS) .

.PHONY: sbom
sbom: $(SBOM_TOOL) ## write dist/sbom.cdx.json: what the image contains, from the lock file, as CycloneDX
	@mkdir -p dist
	$(SBOM_TOOL) requirements requirements-runtime.lock --pyproject pyproject.toml --mc-type application \
		--output-reproducible --output-format JSON --output-file dist/sbom.cdx.json

# In an environment of its own: the tool is no dependency of the gateway.
$(SBOM_TOOL):
	$(PYTHON) -m venv $(SBOM_HOME)
	$(SBOM_HOME)/bin/python -m pip install --quiet --disable-pip-version-check cyclonedx-bom==7.5.0

.PHONY: charts
charts: $(READY) ## write what is generated below charts/ from the comments of the values
	$(BIN)/python charts/values_docs.py

.PHONY: clean
clean: ## remove the environment and everything that was built
	rm -rf $(VENV) build dist .coverage* .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
