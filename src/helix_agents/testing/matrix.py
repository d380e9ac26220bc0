"""Writes the support matrix: every requirement, and which backend's test class proves it.

    python -m helix_agents.testing.matrix docs/reference/conformance.md tests.contracts.test_sqlite …

The arguments after the page are importable modules that hold the concrete test classes.
"""

import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path

from helix_agents.testing.contracts.contract import Contract
from helix_agents.testing.requirements.registry import Requirement, Requirements, gaps, proofs_of

PAGE_HEAD = """# Conformance

Every requirement below is proven by at least one test of the suites in `helix_agents.testing.contracts`, and every test
names the requirements it proves. The table is generated from the test classes of the backends; do not edit it.

To hold your own backend to the same contracts, write a test class that inherits them and says how to open one more
handle onto the same data; `tests/contracts/third_party/tiny_store` is a complete example, run from the installed wheel.

*yes*: the backend's tests prove it. *n/a*: it is about several processes, but the backend's data lives in one.
"""


def contracts_in(modules: Iterable[str]) -> list[type[Contract]]:
    """The concrete test classes that these modules define."""
    return [
        value
        for name in modules
        for value in vars(import_module(name)).values()
        if isinstance(value, type) and issubclass(value, Contract) and value.__module__ == name and value.backend
    ]


def render(classes: Sequence[type[Contract]]) -> str:
    """The page: one table per port, one column per backend."""
    parts = [PAGE_HEAD]
    for port in dict.fromkeys(cls.port for cls in classes):
        columns = [cls for cls in classes if cls.port == port]
        parts.append(_table(port, columns[0].requirements, columns))
    return "\n".join(parts)


def _table(port: str, known: Requirements, columns: Sequence[type[Contract]]) -> str:
    lines = [
        f"## {port.capitalize()}",
        "",
        f"| Requirement | Promised by | {' | '.join(cls.backend for cls in columns)} |",
        f"|---|---|{'---|' * len(columns)}",
    ]
    proofs = [proofs_of(cls) for cls in columns]
    for requirement in known.values():
        cells = [_cell(requirement, cls, proven) for cls, proven in zip(columns, proofs, strict=True)]
        lines.append(f"| `{requirement.id}`: {requirement.sentence} | {requirement.source} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _cell(requirement: Requirement, cls: type[Contract], proven: dict[str, tuple[str, ...]]) -> str:
    if requirement.several_processes and not cls.several_processes:
        return "n/a"
    return "yes" if requirement.id in proven else "**no**"


def unproven(cls: type[Contract]) -> list[str]:
    """What a concrete class leaves unproven although it applies to its backend."""
    applying = {
        key: requirement
        for key, requirement in cls.requirements.items()
        if cls.several_processes or not requirement.several_processes
    }
    return gaps(cls, applying)


def main(arguments: Sequence[str]) -> int:
    """Write the page; returns the exit status."""
    if len(arguments) < 2:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    page = Path(arguments[0])
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(render(contracts_in(arguments[1:])), encoding="utf-8")
    return 0


if __name__ == "__main__":
    # Tests live outside the package: they are found from the folder where the command is run.
    sys.path.insert(0, str(Path.cwd()))
    raise SystemExit(main(sys.argv[1:]))
