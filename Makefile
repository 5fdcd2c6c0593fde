# Two commands: `make demo` and `make test`. Each sets everything up first; only Python ≥ 3.11 and make are needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test check serve up down bench chaos fuzz client lock clean

demo: $(READY)
	@$(BIN)/admeta demo

# Four processes on any machine: tests that start Rays, services and browsers wait for leases, outages and processes, and
# others can train meanwhile; of more Rays at once a machine's memory may have no room. On two idle cores all tests take 23
# minutes so. Each takes file after file, those of slow tests first (tests/conftest.py).
TEST_PROCESSES ?= 4

# Pytest compiles the tests with its own assertions: once, and not in each process.
test: export PYTHONDONTWRITEBYTECODE :=
test: $(READY)
	$(BIN)/python -m pytest $(or $(PYTEST_ARGS),-n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

serve: $(READY)
	$(BIN)/admeta serve

# A cluster on this host in containers; needs a Docker engine. PROFILE=gpu: one worker with all of the host's cards.
PROFILE ?= cpu
WORKERS ?= 1
WORKER_cpu := ray-worker-cpu
WORKER_gpu := ray-worker

up:
	sh deploy/secrets.sh secrets
	docker compose --profile $(PROFILE) up --build --detach --wait --scale $(WORKER_$(PROFILE))=$(WORKERS)
	@echo "http://127.0.0.1:$${ADMETA_PORT:-8000}; sign in with the token in secrets/admin_token"

down:
	docker compose --profile cpu --profile gpu down

bench: $(READY)
	$(BIN)/python -m benchmarks.overhead

# Kill -9 of service, driver, worker, node and database, many rounds each; prints what was lost.
chaos: $(READY)
	$(BIN)/python -m tests.chaos

# Schemathesis, thousands of requests against the live service; prints its summary.
fuzz: $(READY)
	$(BIN)/python -m tests.service.fuzz

# The blocking client from the one for asyncio. A test fails where the generated files are not current.
client: $(READY)
	$(BIN)/python -m tests.admeta.client.generate

# The pins are those of requirements.lock. uv installs them in parallel; it comes from PyPI like everything else. Bytecode is
# made once, here: where PYTHONDONTWRITEBYTECODE is set, each worker would make its own, which takes longer than its start.
$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; $(PYTHON) is $$($(PYTHON) --version). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV) (a few minutes, about 6 GB with PyTorch) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python -r requirements.lock
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps -e .
	@$(BIN)/python -m compileall -q admeta search service tasks
	@touch $(READY)

# torch and torchvision are held at the newest pair that was tested together.
lock:
	printf 'torch==2.14.1\ntorchvision==0.29.1\n' | $(BIN)/uv pip compile --universal --quiet --extra dev \
		--python-version 3.11 --no-header --no-annotate -c - pyproject.toml -o requirements.lock

clean:
	rm -rf $(VENV) .demo .mypy_cache .pytest_cache .ruff_cache
