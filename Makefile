# Everything runs in .venv, which the first target that needs it makes: python3 (3.9 - 3.13) is all there has to be.
#   make venv | demo | demo-speech | demo-real-speech | demo-translation | docs | test-fast | test | test-long | test-versions | test-faults
#   | gpu-check | lint | bench | dist | clean
#         PYTHON=python3.11 make venv      takes that interpreter
#         TENSORFLOW='~=2.19.0' make venv  takes that TensorFlow, not 2.16

VENV := .venv
# of pyproject.toml, and the TensorFlow that it takes
EXTRA := cpu
PACKAGE := tensorflow-cpu
PY := $(VENV)/bin/python
STAMP := $(VENV)/.stamp
# What Horovod can be built with here. Debian's openmpi-bin has mpicxx without the headers, so a program is compiled (\043
# is the number sign). The stamp is named after the result, so that Horovod is built again once MPI is installed
FLAVOUR := $(if $(shell printf '\043include <mpi.h>\n' | mpicxx -x c++ -fsyntax-only - 2>/dev/null && echo yes),mpi,gloo)
HOROVOD := $(VENV)/.horovod-$(FLAVOUR)
DEMO_PACKAGES := $(VENV)/.demo-packages
DOCS_PACKAGES := $(VENV)/.docs-packages
BUILT_SO := import horovod.tensorflow as hvd; assert hvd.mpi_built() == ('$(FLAVOUR)' == 'mpi')
REQUIRED := import importlib.metadata as m; \
  print(*[r.split(';')[0] for r in m.requires('returnn-tf') if r.startswith('horovod')])
SUPPORTED := import sys; sys.exit(not (3, 9) <= sys.version_info[:2] <= (3, 13))
CANDIDATES := python3 python3.11 python3.12 python3.10 python3.9 python3.13 python
# 2.16 is the one release for which tensorflow-io and Horovod both work. Keras 3.6 imports matplotlib with TensorFlow, a
# fifth of the start of every process
ifdef TENSORFLOW
RELEASE := print('$(PACKAGE)$(TENSORFLOW)')
else
RELEASE := import sys; print(*['$(PACKAGE)~=2.16.2', 'keras<3.6'] if sys.version_info < (3, 13) else [])
endif
# several processes at once (tests, data loading) share the cores better without TensorFlow's chatter and extra threads
export TF_CPP_MIN_LOG_LEVEL ?= 3

.PHONY: help venv horovod demo demo-speech demo-real-speech demo-translation docs test-fast test test-long test-versions test-faults \
  gpu-check run-gpu-check lint bench dist clean

help:
	@echo "make venv    the environment with all that the other targets need (.venv)"
	@echo "make horovod tries once more to build Horovod in it, if that failed"
	@echo "make demo    trains a recogniser for lines of handwritten digits, draws its learning curve and results"
	@echo "make demo-speech       trains recognisers of spoken sentences; needs espeak-ng"
	@echo "make demo-real-speech  shows the steps of a recogniser of recorded speech, which takes hours to train; needs apt-get, espeak-ng"
	@echo "make demo-translation  trains a translator of messages of programs"
	@echo "make docs    the documentation as a site, in site/; checks all links"
	@echo "make test-fast   some cases of each test that is not slow, in minutes: before a commit"
	@echo "make test    the test suite; ARGS='-k name' for a part of it"
	@echo "make test-long   what takes minutes: hundreds of killed runs and the like"
	@echo "make test-versions   the core of the suite with other releases of Python and TensorFlow; PAIRS='2.21/3.13'"
	@echo "make test-faults  faults of trainings with several processes, with three releases of TensorFlow"
	@echo "make gpu-check   compares, times and trains on the GPU of this machine, and writes gpu-check.md; ARGS=--quick"
	@echo "make lint    rules on imports and facts (tools/lint), ruff, mypy and clang-format"
	@echo "make bench   the measurements under bench/"
	@echo "make dist    the wheel and the sdist, in dist/"
	@echo "make clean   deletes .venv and what the tools cache"

venv: $(STAMP) $(HOROVOD)

$(STAMP): setup.py pyproject.toml
	@python=''; for candidate in $(PYTHON) $(CANDIDATES); do \
	  if $$candidate -c '$(SUPPORTED)' 2>/dev/null; then python=$$candidate; break; fi; done; \
	if [ -z "$$python" ]; then \
	  echo "make venv: found no Python 3.9 - 3.13 ($$(python3 --version 2>&1 || echo 'no python3'))." >&2; \
	  echo "TensorFlow exists for no other. Install one of them beside yours, for example" >&2; \
	  echo "    apt-get install python3.11 python3.11-venv      or      uv python install 3.11" >&2; \
	  echo "and say which: make venv PYTHON=/path/to/python3.11" >&2; exit 1; fi; \
	if ! [ -x $(PY) ] && ! $$python -m venv $(VENV); then \
	  rm -rf $(VENV); \
	  echo "make venv: '$$python -m venv' does not work here; on Debian and Ubuntu: apt-get install python3-venv" >&2; \
	  exit 1; fi
	$(PY) -m pip install -qq --disable-pip-version-check --upgrade pip 'setuptools>=77,<80'
	$(PY) -m pip install -qq --disable-pip-version-check -e '.[$(EXTRA),audio,plot,dev]' $$($(PY) -c "$(RELEASE)")
	@touch $@

# built here, against the TensorFlow of the environment, in some minutes; without MPI there is still Gloo. Nothing but
# its own tests needs it, so that a failure is told and not repeated ("make horovod" tries again). Not from pip's cache:
# a wheel in it may have been built for another TensorFlow or without MPI. An older build stays if the new one fails
$(HOROVOD): $(STAMP)
	@echo "make venv: building Horovod, for training with several processes (minutes)"
	@mpi=HOROVOD_WITH$(if $(filter mpi,$(FLAVOUR)),,OUT)_MPI=1; \
	cmake=; if ! command -v cmake >/dev/null; then cmake='cmake<4'; fi; \
	if $(PY) -c "$(BUILT_SO)" 2>/dev/null || { \
	  $(PY) -m pip install -qq --disable-pip-version-check 'setuptools<80' wheel packaging $$cmake && \
	  PATH="$(CURDIR)/$(VENV)/bin:$$PATH" MAKEFLAGS= HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 \
	    HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITH_GLOO=1 env $$mpi $(PY) -m pip install --disable-pip-version-check \
	    --no-build-isolation --no-cache-dir --force-reinstall --no-deps "$$($(PY) -c "$(REQUIRED)")" && \
	  $(PY) -m pip install --disable-pip-version-check -e '.[horovod]'; } >$(VENV)/horovod.log 2>&1; then :; \
	else echo "make venv: Horovod can't be built here (see $(VENV)/horovod.log), so its tests will be skipped; it" \
	  "needs g++, make and, for MPI, mpicxx (apt-get install g++ make openmpi-bin libopenmpi-dev)" >&2; fi
	@rm -f $(VENV)/.horovod*
	@touch $@

horovod: $(STAMP)
	@rm -f $(HOROVOD)
	@$(MAKE) --no-print-directory $(HOROVOD)

demo: $(STAMP)
	$(PY) demos/digits/run.py

# what the demos of speech and translation use beside the package
$(DEMO_PACKAGES): $(STAMP)
	$(PY) -m pip install -qq --disable-pip-version-check -e '.[demo]'
	@touch $@

demo-speech: $(DEMO_PACKAGES)
	$(PY) demos/speech/run.py

demo-real-speech: $(DEMO_PACKAGES)
	$(PY) demos/real_speech/run.py --quick --corpora cs,ru,prompts

demo-translation: $(DEMO_PACKAGES)
	$(PY) demos/translation/run.py

$(DOCS_PACKAGES): $(STAMP)
	$(PY) -m pip install -qq --disable-pip-version-check -e '.[docs]'
	@touch $@

docs: $(DOCS_PACKAGES)
	@$(PY) -m tools.docs.build

# many tests start processes, which begin faster with compiled modules, whatever this shell says
test-fast test test-long: export PYTHONDONTWRITEBYTECODE :=

PYTEST := $(PY) -m pytest --durations=20
BY_FILE := --dist loadfile --no-loadscope-reorder

test-fast: venv
	$(PYTEST) --fast -n 2 $(BY_FILE) $(ARGS)

# three files for two cores: tests of lost processes, schedulers and full disks wait for minutes in all
test: venv
	$(PYTEST) -n 3 $(BY_FILE) $(ARGS)

test-long: venv
	$(PYTEST) -m long $(ARGS)

# environments and logs are kept in .versions; the rows of docs/versions.md are rewritten for the pairs that were run
test-faults: KIND := --faults
test-versions test-faults:
	@python=''; for candidate in $(PYTHON) $(CANDIDATES); do \
	  if $$candidate -c '$(SUPPORTED)' 2>/dev/null; then python=$$candidate; break; fi; done; \
	$${python:-python3} release/versions.py $(KIND) $(PAIRS)

# in an environment of its own, since a TensorFlow for CPUs sees no GPU. What make makes of exit code 1 or 2 is 2
gpu-check:
	@command -v nvidia-smi >/dev/null || { \
	  echo "make gpu-check: there is no NVIDIA GPU (no nvidia-smi, which comes with the driver)" >&2; exit 2; }
	@$(MAKE) --no-print-directory VENV=.venv-gpu EXTRA=gpu PACKAGE='tensorflow[and-cuda]' run-gpu-check

run-gpu-check: $(STAMP)
	@$(PY) -m returnn_tf.native.gpu.find_nvcc >/dev/null || { \
	  echo "make gpu-check: installing nvcc of CUDA 13, as there is no CUDA toolkit"; \
	  $(PY) -m pip install -qq --disable-pip-version-check -e '.[nvcc]' || \
	  echo "make gpu-check: pip could not install it, so TensorFlow's forms are used in place of native ops" >&2; }
	$(PY) -m returnn_tf doctor --gpu $(ARGS)

lint: $(STAMP)
	$(PY) -m tools.lint
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	git ls-files '*.c' '*.cc' '*.cu' '*.h' | xargs $(VENV)/bin/clang-format --dry-run -Werror --style=file

bench: venv
	@set -e; for script in bench/*.py; do echo "== $$script"; $(PY) $$script; done

dist: $(STAMP)
	$(PY) -m build

clean:
	rm -rf $(VENV) .venv-gpu .versions .pytest_cache .mypy_cache .ruff_cache build dist site *.egg-info
