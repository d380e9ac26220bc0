"""No requirement without a proof, no proof without a requirement, and a support matrix that tells the truth."""

from pathlib import Path

import pytest

from helix_agents.testing.contracts.contract import Contract
from helix_agents.testing.contracts.entries import EntryStoreContract
from helix_agents.testing.contracts.locks import LockManagerContract
from helix_agents.testing.contracts.memories import MemoryStoreContract
from helix_agents.testing.contracts.state_store import StateStoreContract
from helix_agents.testing.contracts.streams import StreamManagerContract
from helix_agents.testing.contracts.usage import UsageStoreContract
from helix_agents.testing.matrix import contracts_in, main, render, unproven
from helix_agents.testing.requirements.registry import (
    Requirement,
    gaps,
    promised_by,
    proofs_of,
    proves,
    requirements,
)

CONTRACTS = (
    StateStoreContract,
    StreamManagerContract,
    LockManagerContract,
    UsageStoreContract,
    MemoryStoreContract,
    EntryStoreContract,
)
# The state capabilities need transactions over everything they keep, which Redis has only within one slot: there is no
# place for them on it, and a store that is asked for one says so.
EXEMPT = {("redis", EntryStoreContract.port)}
MODULES = (
    "tests.contracts.test_in_memory",
    "tests.contracts.test_sqlite",
    "tests.contracts.test_postgres",
    "tests.contracts.test_redis",
    "tests.contracts.test_in_memory_streams",
    "tests.contracts.test_sqlite_streams",
    "tests.contracts.test_postgres_streams",
    "tests.contracts.test_redis_streams",
)
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "conformance.md"
CURE = f"uv run python -m helix_agents.testing.matrix docs/reference/conformance.md {' '.join(MODULES)}"


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.port)
def test_requirements_and_proofs_of_a_port_match(contract: type[Contract]) -> None:
    assert gaps(contract, contract.requirements) == []


def test_every_backend_keeps_every_contract() -> None:
    kept = {(cls.backend, cls.port): unproven(cls) for cls in contracts_in(MODULES)}
    backends = {backend for backend, _ in kept}
    every = {(backend, contract.port) for backend in backends for contract in CONTRACTS}
    assert kept == {place: [] for place in every - EXEMPT}
    assert backends == {"in_memory", "sqlite", "postgres", "redis"}


def test_the_support_matrix_is_up_to_date() -> None:
    expected = render(contracts_in(MODULES))
    found = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    assert found == expected, f"docs/reference/conformance.md is out of date; write it again: {CURE}"


def test_a_requirement_is_one_sentence_with_an_id_in_the_house_style() -> None:
    for contract in CONTRACTS:
        for requirement in contract.requirements.values():
            facet, _, name = requirement.id.partition(".")
            assert facet.islower(), requirement.id
            assert name.islower(), requirement.id
            assert requirement.sentence.endswith("."), requirement.id
            assert "|" not in requirement.sentence, f"{requirement.id} would break the table"


KNOWN = requirements(
    promised_by("doors", {"doors.open": "A door opens.", "doors.close": "A door closes."}),
    promised_by("doors", {"doors.shared": "Others may use it too."}, several_processes=True),
)


class Doors(Contract):
    port = "doors"
    requirements = KNOWN

    @proves("doors.open")
    async def test_it_opens(self) -> None: ...

    @proves("doors.open", "doors.close")
    def test_it_closes(self) -> None:
        raise ValueError("stuck")

    @proves("doors.shared")
    def test_it_is_shared(self) -> None: ...


def test_what_does_not_match_is_named() -> None:
    class Crooked(Doors):
        test_it_closes = None  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]

        @proves("doors.paint")
        def test_it_is_painted(self) -> None: ...

        def test_it_squeaks(self) -> None: ...

    assert gaps(Crooked, KNOWN) == [
        "requirement doors.close has no proof in Crooked",
        "Crooked.test_it_is_painted proves doors.paint, which no requirement says",
        "Crooked.test_it_squeaks does not say what it proves",
    ]


def test_a_failed_proof_names_its_requirements() -> None:
    with pytest.raises(ValueError, match="stuck") as failure:
        Doors().test_it_closes()
    assert failure.value.__notes__ == [
        "Requirement doors.open: A door opens.",
        "Requirement doors.close: A door closes.",
    ]


def test_a_backend_in_one_process_is_not_asked_about_several() -> None:
    class Alone(Doors):
        backend = "alone"
        several_processes = False

    class Together(Doors):
        backend = "together"

    assert Alone.test_it_is_shared is None
    assert unproven(Alone) == unproven(Together) == []
    page = render([Alone, Together])
    assert "| `doors.shared`: Others may use it too. | doors | n/a | yes |" in page
    assert "| `doors.open`: A door opens. | doors | yes | yes |" in page


def test_a_proof_that_was_switched_off_shows_in_the_matrix() -> None:
    class Lazy(Doors):
        backend = "lazy"
        test_it_closes = None  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]

    assert "doors.close" not in proofs_of(Lazy)
    assert "| `doors.close`: A door closes. | doors | **no** |" in render([Lazy])


def test_a_requirement_cannot_be_written_twice() -> None:
    with pytest.raises(ValueError, match=r"doors\.open"):
        requirements(KNOWN, {"doors.open": Requirement("doors.open", "It opens.", "doors")})


def test_a_proof_names_at_least_one_requirement() -> None:
    with pytest.raises(TypeError):
        proves()


def test_the_matrix_is_written_by_one_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "deep" / "page.md"
    assert main([str(page), *MODULES]) == 0
    assert page.read_text(encoding="utf-8") == render(contracts_in(MODULES))
    assert main([]) == 2
    assert "helix_agents.testing.matrix" in capsys.readouterr().err
