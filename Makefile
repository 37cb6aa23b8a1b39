# All that a developer runs. Arguments go through ARGS: make test ARGS="-k in_flight -x"

PYTHON ?= $(shell command -v python3.11 || command -v python3)
ARGS ?=
BIN := .venv/bin
# Benchmarks, chaos tests and the demo start many Pythons, and each would compile the package; tests see to it themselves.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup ready ready-python ready-demo demo demo-cluster test test-all test-containers spec fuzz matrix spark-matrix soak compare power bench docs release-check lock lint check clean

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

setup: ## Install all that is missing, for every target: Debian packages, and .venv with this checkout in it
	@PYTHON="$(PYTHON)" dev/tools/setup.sh

# The same without a word when there is nothing to do; what the others depend on. Some need less than everything.
ready:
	@PYTHON="$(PYTHON)" dev/tools/setup.sh --quiet

ready-python:
	@PYTHON="$(PYTHON)" dev/tools/setup.sh --quiet python

ready-demo:
	@PYTHON="$(PYTHON)" dev/tools/setup.sh --quiet demo $(BROKER) $(PROTOCOL) $(subst =, ,$(ARGS))

demo: ready-demo ## Watch it survive a kill: BROKER=rabbitmq PROTOCOL=stomp, or ARGS="--url ... --queue ..." for your own
	$(BIN)/python -m testbed.demo $(if $(BROKER),--broker $(BROKER)) $(if $(PROTOCOL),--protocol $(PROTOCOL)) $(ARGS)

demo-cluster: ready-demo ## The same on a standalone cluster of Spark: two workers, of which one is killed in the middle
	$(BIN)/python -m testbed.demo --cluster $(if $(BROKER),--broker $(BROKER)) $(if $(PROTOCOL),--protocol $(PROTOCOL)) $(ARGS)

# What a busy machine is late with is tried once again, and nothing else: a Python worker that Spark gives 10 s to start,
# without a setting for it (PythonWorkerFactory.createSimpleWorker), and what a test polled for in vain.
RERUNS := --reruns 1 -raR --only-rerun "Timed out while waiting for the Python worker to connect back" \
	--only-rerun "Python worker failed to connect back" --only-rerun "where False = (poll|awaitTermination)\b"
PYTEST := $(BIN)/python -m pytest --dist loadgroup --no-loadscope-reorder $(RERUNS) --numprocesses

test: ready ## Run the tests against brokers of their own: all units, each contract test on each protocol, Spark with each kind of call
	$(PYTEST) 6 $(ARGS)

test-all: ready ## Run every test on every broker and protocol; ARGS="--third 2": a third of what `make test` leaves out
	$(PYTEST) 4 --all $(ARGS)

test-containers: ready ## Run the tests against brokers in containers
	@BIN="$(BIN)" dev/tools/containers.sh env CI=true $(BIN)/python -m pytest tests/containers $(ARGS)

spec: ready ## Check the specification in dev/spec/ with TLC; writes docs/reports/specification.md; ARGS=--rules, ARGS="--model 'two queues'", ARGS=--long
	$(BIN)/python -m tools.spec $(ARGS)

fuzz: ready-python ## Fuzz the decoders against oracles of their own: ARGS="--minutes 60", ARGS="amqp10 --seed 7"
	$(BIN)/python -m tests.fuzz $(ARGS)

matrix: ready ## Run contract tests, failure matrix and a chaos test on every broker and protocol; writes docs/reports/compatibility.md
	$(BIN)/python -m tests.matrix $(ARGS)

spark-matrix: ready ## Run the tests in real Sparks of each version, from PyPI; writes docs/reports/spark.md
	$(BIN)/python -m tests.spark_matrix $(ARGS)

soak: ready ## Kill everything at random, count what arrives, have it judged; ARGS="--folder ..." goes on; also --cluster, --periodic
	$(BIN)/python -m testbed.chaos.soak $(ARGS)

compare: ready ## The same faults for this source, Flink's RMQSource and Hazelcast: ARGS="--readers flink --faults 5"
	$(BIN)/python -m testbed.comparison $(ARGS)

power: ready ## Cut the power of a disk below a query and below brokers, as root; ARGS="--settle-after synced --cuts 10 --page"
	$(BIN)/python -m testbed.power $(ARGS)

bench: ready ## Measure beside bare clients, PerfTest, Flink and Hazelcast, or a part of it: ARGS="growth --page"
	$(BIN)/python -m benchmarks $(ARGS)

docs: ready-python ## Write the tables from the code, and a site from docs/ into build/site; a broken link is an error
	$(BIN)/python -m tools.reference
	$(BIN)/python -m sphinx -q -W --keep-going -E -b html -d build/doctrees docs build/site $(ARGS)
	@echo build/site/index.html

release-check: ready ## Is it fit to be released? Minutes with every Spark: ARGS="--pythons 3.11 --sparks 4.3.0", ARGS="--tag v0.1.0"
	$(BIN)/python -m tools.release $(ARGS)

lock: ready-python ## Renew requirements-dev.txt, the versions that set-up installs
	$(BIN)/python -m tools.lock

lint: ready-python ## Check style, format and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

check: lint test ## What has to pass before a commit; prints sizes, which fail nothing
	$(BIN)/python -m tools.sizes

clean: ## Delete all that can be made again, .venv too
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -rf spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
