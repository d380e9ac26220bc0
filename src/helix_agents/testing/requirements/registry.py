"""Requirements as data, proofs that name them, and the check that neither exists without the other."""

import inspect
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

Test = TypeVar("Test", bound=Callable[..., Any])


@dataclass(frozen=True)
class Requirement:
    """One guarantee: an id that is never reused, a sentence, and the part of the product that promises it.

    A requirement about `several_processes` does not apply to a backend whose data lives in one process.
    """

    id: str
    sentence: str
    source: str
    several_processes: bool = False


Requirements: TypeAlias = Mapping[str, Requirement]


def promised_by(source: str, sentences: Mapping[str, str], *, several_processes: bool = False) -> Requirements:
    """Requirements of one part of the product, given as id and sentence."""
    return {key: Requirement(key, sentence, source, several_processes) for key, sentence in sentences.items()}


def requirements(*groups: Requirements) -> Requirements:
    """All requirements of a port; an id that two groups use is refused."""
    everything: dict[str, Requirement] = {}
    for group in groups:
        twice = everything.keys() & group.keys()
        if twice:
            raise ValueError(f"these requirements are written twice: {sorted(twice)}")
        everything.update(group)
    return MappingProxyType(everything)


def proves(*ids: str) -> Callable[[Test], Test]:
    """Say which requirements a test of a contract proves; if it fails, its report names them.

    A plain attribute rather than a pytest marker, so that `--strict-markers` is never a problem for third parties.
    """
    if not ids:
        raise TypeError("a proof names at least one requirement")

    def decorate(test: Test) -> Test:
        proof = _async_proof(test, ids) if inspect.iscoroutinefunction(test) else _proof(test, ids)
        vars(proof)["proves"] = ids
        return proof  # pyright: ignore[reportReturnType]  # it has the signature that it wraps

    return decorate


def _proof(test: Callable[..., Any], ids: tuple[str, ...]) -> Callable[..., Any]:
    @wraps(test)
    def proof(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        with _naming(self, ids):
            return test(self, *args, **kwargs)

    return proof


def _async_proof(test: Callable[..., Any], ids: tuple[str, ...]) -> Callable[..., Any]:
    @wraps(test)
    async def proof(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        with _naming(self, ids):
            return await test(self, *args, **kwargs)

    return proof


@contextmanager
def _naming(contract: Any, ids: tuple[str, ...]) -> Generator[None]:
    known: Requirements = getattr(contract, "requirements", {})
    try:
        yield
    except BaseException as failure:
        for key in ids:
            sentence = known[key].sentence if key in known else "(not written down)"
            failure.add_note(f"Requirement {key}: {sentence}")
        raise


def tests_of(contract: type) -> dict[str, Callable[..., Any]]:
    """The tests that pytest would run for a class; a test that is set to None is switched off."""
    found = {name: getattr(contract, name) for name in dir(contract) if name.startswith("test_")}
    return {name: test for name, test in found.items() if callable(test)}


def proofs_of(contract: type) -> dict[str, tuple[str, ...]]:
    """For each requirement id that the class's tests name: the tests that prove it."""
    proofs: dict[str, list[str]] = {}
    for name, test in tests_of(contract).items():
        for key in getattr(test, "proves", ()):
            proofs.setdefault(key, []).append(name)
    return {key: tuple(names) for key, names in proofs.items()}


def gaps(contract: type, known: Requirements) -> list[str]:
    """Mismatches between a contract and its requirements, one sentence each; an empty list means that all is well."""
    proofs = proofs_of(contract)
    return [
        *(f"requirement {key} has no proof in {contract.__name__}" for key in known if key not in proofs),
        *(
            f"{contract.__name__}.{name} proves {key}, which no requirement says"
            for key, names in proofs.items()
            if key not in known
            for name in names
        ),
        *(
            f"{contract.__name__}.{name} does not say what it proves"
            for name, test in tests_of(contract).items()
            if not hasattr(test, "proves")
        ),
    ]
