"""Examples of every record with every field filled, and the files that keep them forever.

    uv run python -m tests.support.record_examples

writes the examples that are missing for the present schema version: one for each record, and one more (`Name.2.json`)
for a record that got a field since. An existing one is never written again: a release may have stored it.
"""

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

import helix_agents.backends
import helix_agents.domain
from helix_agents.domain.records import SCHEMA_VERSION, Record, encode

# Base records, the page of a listing, settings and arguments: none of them is ever stored as itself.
NOT_ALONE = {"ChunkHeader", "Page", "PostgresSettings", "Claim"}

FOLDER = Path(__file__).parents[1] / "fixtures" / "records"


def record_types() -> dict[str, type[Record]]:
    """Every record of the domain that is stored or sent, and every one that a backend stores, by name."""
    found: dict[str, type[Record]] = {}
    for kind in _records_in(helix_agents.domain):
        if not kind.__name__.startswith("_"):
            found[kind.__name__] = kind
    for kind in _records_in(helix_agents.backends):
        config = kind.__struct_config__
        # A list in JSON, or one that may have other fields, is part of a record, and in its example.
        is_part = config.array_like or not config.forbid_unknown_fields
        if kind.__module__.startswith(helix_agents.backends.__name__) and not is_part:
            assert found.setdefault(kind.__name__, kind) is kind, f"two records are named {kind.__name__}"
    return found


def _records_in(package: Any) -> Iterator[type[Record]]:
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        for value in vars(importlib.import_module(module.name)).values():
            is_record = isinstance(value, type) and issubclass(value, Record) and value is not Record
            if is_record and value.__name__ not in NOT_ALONE:
                yield value


def example(kind: type[Record]) -> Record:
    """A record of this type with no field at its default."""
    return _of(msgspec.inspect.type_info(kind))


def _of(kind: msgspec.inspect.Type) -> Any:
    match kind:
        case msgspec.inspect.StructType(cls=cls, fields=fields):
            return cls(**{field.name: _of(field.type) for field in fields})
        case msgspec.inspect.UnionType(types=types):
            return _of(next(each for each in types if not isinstance(each, msgspec.inspect.NoneType)))
        case msgspec.inspect.LiteralType(values=values):
            return values[-1]
        case msgspec.inspect.VarTupleType(item_type=item):
            return (_of(item),)
        case msgspec.inspect.ListType(item_type=item):
            return [_of(item)]
        case msgspec.inspect.DictType(value_type=value):
            return {"naïve key": _of(value)}
        case msgspec.inspect.BoolType():
            return True
        case msgspec.inspect.IntType():
            return 2**41 + 1
        case msgspec.inspect.FloatType():
            return 2.5
        case msgspec.inspect.StrType():
            return "日本語 🌊"
        case msgspec.inspect.AnyType():
            return {"nested": [None, {"empty": []}, 2**63], "text": ""}
        case _:
            raise TypeError(f"no example for {kind}")


def stored_examples(name: str) -> list[Path]:
    """The examples of a record that are kept for the present version."""
    return sorted((FOLDER / f"v{SCHEMA_VERSION}").glob(f"{name}.*json"))


def lacks_a_complete_example(name: str, kind: type[Record]) -> bool:
    """Whether no stored example has every field that the record has now."""
    fields = msgspec.json.decode(encode(example(kind))).keys()
    return not any(fields <= msgspec.json.decode(path.read_bytes()).keys() for path in stored_examples(name))


def write_missing() -> list[Path]:
    """Write the missing examples; returns what was written."""
    written: list[Path] = []
    for name, kind in record_types().items():
        if lacks_a_complete_example(name, kind):
            kept = len(stored_examples(name))
            path = FOLDER / f"v{SCHEMA_VERSION}" / f"{name}{f'.{kept + 1}' if kept else ''}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(msgspec.json.format(encode(example(kind)), indent=2) + b"\n")
            written.append(path)
    return written


if __name__ == "__main__":
    for path in write_missing():
        print(path)
