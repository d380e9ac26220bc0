"""What a released version stored stays readable for ever; what a newer one stored is refused by name."""

import json
from pathlib import Path

import msgspec
import pytest

from helix_agents.domain.chunks import StreamChunk, TextDelta
from helix_agents.domain.errors import RecordTooNewError, SessionCorruptError
from helix_agents.domain.messages import Message, UserMessage
from helix_agents.domain.pending import Answer, PendingCall
from helix_agents.domain.records import SCHEMA_VERSION, Record, decode, encode
from helix_agents.domain.runs import RunRecord
from helix_agents.domain.sessions import SessionState
from helix_agents.domain.writes import StepWrites
from tests.support.record_examples import FOLDER, example, lacks_a_complete_example, record_types

STORED = sorted(FOLDER.glob("v*/*.json"))
TYPES = record_types()


@pytest.mark.parametrize("path", STORED, ids=lambda path: f"{path.parent.name} {path.stem}")
def test_every_stored_record_decodes_and_nothing_of_it_is_lost(path: Path) -> None:
    stored = path.read_bytes()
    record = decode(stored, TYPES[path.name.partition(".")[0]])
    assert json.loads(encode(record)) == json.loads(stored)


@pytest.mark.parametrize(("name", "kind"), TYPES.items(), ids=TYPES)
def test_every_record_has_a_stored_example_with_every_field(name: str, kind: type[Record]) -> None:
    cure = "write what is missing: uv run python -m tests.support.record_examples"
    assert not lacks_a_complete_example(name, kind), cure


@pytest.mark.parametrize("kind", TYPES.values(), ids=lambda kind: kind.__name__)
def test_every_field_of_every_record_survives_json(kind: type[Record]) -> None:
    full = example(kind)
    assert decode(encode(full), kind) == full


@pytest.mark.parametrize("kind", TYPES.values(), ids=lambda kind: kind.__name__)
def test_a_field_of_a_newer_version_is_refused(kind: type[Record]) -> None:
    newer = {**json.loads(encode(example(kind))), "invented_later": 1}
    with pytest.raises(RecordTooNewError) as refusal:
        decode(json.dumps(newer), kind)
    assert (refusal.value.record, refusal.value.known) == (kind.__name__, SCHEMA_VERSION)
    assert "Upgrade" in str(refusal.value)


@pytest.mark.parametrize("kind", TYPES.values(), ids=lambda kind: kind.__name__)
def test_an_optional_field_that_is_missing_takes_its_default(kind: type[Record]) -> None:
    full = json.loads(encode(example(kind)))
    config, fields = kind.__struct_config__, msgspec.structs.fields(kind)
    required = {field.encode_name: full[field.encode_name] for field in fields if field.required}
    if config.tag_field:
        required[config.tag_field] = config.tag
    loaded = decode(json.dumps(required), kind)
    for field in fields:
        if not field.required and field.default_factory is msgspec.NODEFAULT:
            assert getattr(loaded, field.name) == field.default


@pytest.mark.parametrize(
    ("kind", "newer"),
    [
        pytest.param(Message, {"role": "oracle", "content": "?"}, id="a kind of message"),
        pytest.param(StreamChunk, {"type": "hologram"}, id="a kind of chunk"),
        pytest.param(Answer, {"kind": "shrug"}, id="a kind of answer"),
        pytest.param(StepWrites, {"ops": [{"kind": "increment", "key": "n"}]}, id="a kind of write, within a record"),
    ],
)
def test_a_tag_of_a_newer_version_is_refused(kind: type, newer: dict) -> None:
    with pytest.raises(RecordTooNewError):
        decode(json.dumps(newer), kind)


@pytest.mark.parametrize(
    ("record", "field"),
    [
        (SessionState(session_id="s", agent_type="a", root_session_id="s"), "status"),
        (RunRecord(run_id="r", session_id="s", turn=1, started_at=1), "status"),
        (example(PendingCall), "state"),
    ],
    ids=["session status", "run status", "call state"],
)
def test_a_value_of_a_newer_version_is_refused(record: Record, field: str) -> None:
    newer = {**json.loads(encode(record)), field: "transcended"}
    with pytest.raises(RecordTooNewError):
        decode(json.dumps(newer), type(record))


@pytest.mark.parametrize(
    ("kind", "damaged"),
    [
        pytest.param(UserMessage, b"", id="nothing"),
        pytest.param(UserMessage, b'{"role": "user", "content"', id="cut off"),
        pytest.param(UserMessage, b"[]", id="something else"),
        pytest.param(UserMessage, b'{"role": "user"}', id="a required field missing"),
        pytest.param(TextDelta, b'{"type": "text_delta", "session_id": 7}', id="a number for a text"),
    ],
)
def test_damage_is_told_from_progress(kind: type[Record], damaged: bytes) -> None:
    with pytest.raises(SessionCorruptError) as refusal:
        decode(damaged, kind)
    assert refusal.value.record == kind.__name__
