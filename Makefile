# Everything a fresh machine needs is Python 3.11 or newer and a package registry; `make run` does the rest.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
PROTO  := src/penstock/journal/protocol

# Spark and the tests start hundreds of short Python processes; without bytecode each would compile everything anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test soak lint format bench conformance proto clean

run: $(READY)  ## the quick start: a sample shop through the log and Spark into two files
	@$(BIN)/python examples/shop/make_shop.py quickstart/shop.db
	@cd quickstart && ../$(BIN)/penstock run ../examples/shop/pipeline.py --once
	@cd quickstart && ../$(BIN)/penstock status
	@echo "To look around:  source $(BIN)/activate && cd quickstart && penstock status"
	@echo "Then kill it in the middle of a \`make run\`, and run it again: nothing is lost, nothing comes twice."

test: $(READY)  ## the whole suite, without the long runs
	$(BIN)/python -m pytest -m "not soak" -n 4 --dist loadgroup --no-loadscope-reorder

soak: $(READY)  ## the long crash loops
	$(BIN)/python -m pytest -m soak --timeout=3600

lint: $(READY)
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix src tests benchmarks examples
	$(BIN)/ruff format src tests benchmarks examples

bench: $(READY)
	$(BIN)/python benchmarks/spine.py
	$(BIN)/python benchmarks/journal.py
	$(BIN)/python benchmarks/cluster.py
	$(BIN)/python benchmarks/ingest.py
	$(BIN)/python benchmarks/pipeline.py
	$(BIN)/python benchmarks/adaptors.py
	$(BIN)/python benchmarks/connector.py
	$(BIN)/python benchmarks/sink.py
	$(BIN)/python benchmarks/immortal.py

conformance: $(READY)  ## every adaptor through the kit, and the table of it in docs/adaptors.md
	$(BIN)/python -m pytest -p penstock.testing.adaptors.results --conformance docs/conformance.json \
	  -n 2 --dist loadgroup tests/adaptors tests/testing/test_conformance.py
	$(BIN)/python -m penstock.testing.adaptors.results docs/conformance.json docs/adaptors.md

# An older compiler on purpose: code it generates also loads with protobuf 6.
proto:  ## regenerate the wire's messages after an edit of a .proto
	$(PYTHON) -m venv build/protoc && build/protoc/bin/pip install -q 'grpcio-tools==1.74.0'
	build/protoc/bin/python -m grpc_tools.protoc -Isrc --python_out=src --pyi_out=src $(PROTO)/journal.proto $(PROTO)/penstock.proto \
		src/penstock/journal/cluster/etcd.proto
	sed -i '1i # mypy: disable-error-code="type-arg"' $(PROTO)/*_pb2.pyi src/penstock/journal/cluster/etcd_pb2.pyi

clean:
	rm -rf $(VENV) quickstart build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Penstock needs Python 3.11 or newer; name one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "Setting up $(VENV): a few minutes the first time (PySpark alone is 450 MB)."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@
