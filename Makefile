PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

ECOSYSTEM := .venv-ecosystem
DOCS := .venv-docs
# The extra alone, without torch: the site is made from the sources, which are read and not run.
DOCS_EXTRA := import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['docs'])

.PHONY: demo test test-ecosystem soak fuzz lint benchmark docs gallery clean

demo: $(READY)  ## three networks on the digits, the curves between two of them, figures in thalweg-demo/
	$(BIN)/thalweg demo

test: $(READY) lint  ## everything CI checks
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile

test-ecosystem: $(ECOSYSTEM)/.ready  ## with the real Lightning, transformers, ONNX Runtime, pandas, ...
	$(ECOSYSTEM)/bin/pytest tests/ecosystem tests/integrations

soak: $(READY)  ## kill every command 1,000 times in all, half of them while it writes, resume, and compare bit for bit
	OMP_NUM_THREADS=1 $(BIN)/python tests/kills.py 1000

fuzz: $(READY)  ## 20,000 mutations over every kind of file that is read: refused by a sentence, or harmless
	OMP_NUM_THREADS=1 $(BIN)/python tests/store/fuzz.py 20000

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

benchmark: $(READY)  ## the cost of a curve step on this machine
	$(BIN)/python benchmarks/steps.py

docs: $(DOCS)/.ready  ## the site, in build/site; a warning or a request to elsewhere fails it
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --quiet
	! grep -rE '<(script|link|img)[^>]* (src|href)="?https?:' --include='*.html' build/site  # pages ask nobody for anything
	@echo "wrote build/site; next: $(PYTHON) -m http.server --directory build/site"

gallery: $(READY)  ## docs/gallery.md and its figures, from the results in docs/paper
	$(BIN)/python docs/gallery.py

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

$(ECOSYSTEM)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(ECOSYSTEM)
	$(ECOSYSTEM)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,ecosystem]'
	$(ECOSYSTEM)/bin/pip install --quiet --disable-pip-version-check --no-deps 'timm>=1.0'  # with deps it brings torchvision
	touch $@

$(DOCS)/.ready: pyproject.toml
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/pip install --quiet --disable-pip-version-check $$($(DOCS)/bin/python -c "$(DOCS_EXTRA)")
	touch $@

clean:
	rm -rf $(VENV) $(ECOSYSTEM) $(DOCS) build .pytest_cache .mypy_cache .ruff_cache .hypothesis thalweg-demo
