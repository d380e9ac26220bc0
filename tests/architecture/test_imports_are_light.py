"""Importing the package costs next to nothing: what a program does not use, it does not load."""

import os
import subprocess
import sys

import pytest

DRIVERS_SERVERS_AND_SDKS = {
    "anthropic",
    "anyio",
    "apsw",
    "argon2",
    "asyncpg",
    "click",
    "cryptography",
    "dbos",
    "google.genai",
    "httpx",
    "httpx2",
    "hypothesis",
    "openai",
    "psycopg",
    "pydantic_ai",
    "pytest",
    "redis",
    "rich",
    "sqlalchemy",
    "sqlite3",
    "starlette",
    "temporalio",
    "tink",
    "uvicorn",
    "yaml",
}


def loaded_after(code: str) -> set[str]:
    """The modules a fresh interpreter holds after running the code."""
    report = "\nimport sys\nsys.stderr.write('\\n'.join(sys.modules))"
    # A measurement of coverage would load modules of its own into the interpreter.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    done = subprocess.run(
        [sys.executable, "-c", code + report], capture_output=True, text=True, check=True, env=environment
    )
    return set(done.stderr.split())


def test_importing_the_package_loads_no_driver_server_or_sdk() -> None:
    assert loaded_after("import helix_agents") & DRIVERS_SERVERS_AND_SDKS == set()


def test_importing_the_package_and_asking_its_version_loads_none_of_its_layers() -> None:
    loaded = loaded_after("import helix_agents; helix_agents.__version__")
    assert {name for name in loaded if name.startswith("helix_agents.")} == set()


@pytest.mark.parametrize("layer", ["domain", "ports"])
def test_the_inner_layers_load_no_driver_server_or_sdk(layer: str) -> None:
    assert loaded_after(f"import helix_agents.{layer}") & DRIVERS_SERVERS_AND_SDKS == set()


def test_asking_the_command_for_its_version_loads_no_store_and_no_model_library() -> None:
    loaded = loaded_after("from helix_agents.cli.app import run; run(['--version'])")
    assert loaded & (DRIVERS_SERVERS_AND_SDKS | {"pydantic", "msgspec"}) == {"click"}


def test_listing_the_commands_loads_no_store_and_no_model_library() -> None:
    """The commands of the state capabilities are made from declarations, which are plain data."""
    loaded = loaded_after("from helix_agents.cli.app import run; run(['--help'])")
    assert loaded & (DRIVERS_SERVERS_AND_SDKS | {"pydantic"}) == {"click"}


def test_looking_at_what_is_stored_loads_no_agents() -> None:
    loaded = loaded_after("import helix_agents.cli.session_views, helix_agents.cli.usage_views")
    assert loaded & (DRIVERS_SERVERS_AND_SDKS | {"pydantic"}) == {"click"}
