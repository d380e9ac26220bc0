# Short names for what contributors do all day; the gates themselves are written once, in .ci/run.
.PHONY: help check test fix chaos coverage

help:
	@echo "make check     every gate, as the automation runs it"
	@echo "make test      the tests"
	@echo "make fix       format, and repair what the linter can repair"
	@echo "make chaos     the long randomised runs"
	@echo "make coverage  the tests, with a report of the lines they reach"

check:
	@.ci/run

test:
	uv run pytest

fix:
	uv run ruff check --fix .
	uv run ruff format .

chaos:
	uv run pytest -m chaos

coverage:
	uv run coverage erase
	uv run coverage run -m pytest
	uv run coverage combine
	uv run coverage report --skip-covered --show-missing
