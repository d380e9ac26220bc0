"""What keys and values may be, through the gate, and the limits of answers."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helix_agents.capabilities.settings import Limits
from helix_agents.capabilities.values import canonical, check_key, parse_time, parsed
from helix_agents.domain.capability_errors import InvalidInput, InvalidTimestamp, KeyNotFound
from tests.capabilities.worlds import World

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(json_values)
def test_a_value_reads_back_as_it_was_written_and_equal_values_are_equal_texts(value: object) -> None:
    text = canonical(value, Limits())
    assert parsed(text) == value
    assert canonical(parsed(text), Limits()) == text


def deep(levels: int) -> object:
    return [] if levels == 0 else [deep(levels - 1)]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1: 2}, b"bytes", {"a": {1, 2}}, "\ud800", deep(65)])
def test_what_has_no_json_form_is_refused(value: object) -> None:
    with pytest.raises(InvalidInput):
        canonical(value, Limits())


@pytest.mark.parametrize("key", ["", "a\x00b", "a\x1b[2J", "x" * 513, "sys.mine", "__x", "e\u0301", "\ud800"])
def test_keys_that_can_never_be_are_refused(key: str) -> None:
    with pytest.raises(InvalidInput):
        check_key(key, Limits())


@pytest.mark.parametrize("key", ["a", "x" * 512, "task.current", "it's", "%", "../x", "日本語", "a b"])
def test_any_other_text_is_a_key(key: str) -> None:
    assert check_key(key, Limits()) == key


@pytest.mark.parametrize("text", ["", "soon", "9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00", "2026-13-01"])
def test_what_is_no_time_that_can_be_shown_is_refused(text: str) -> None:
    with pytest.raises(InvalidTimestamp):
        parse_time(text, now_ms=1_800_000_000_000)


async def test_a_value_without_end_is_refused_through_the_gate(world: World) -> None:
    endless: list[object] = []
    endless.append(endless)
    async with world.open() as state:
        with pytest.raises(InvalidInput, match="nested too deeply, or contains itself"):
            await state.persistent.set("k", endless)


async def test_too_much_is_refused_and_answers_are_cut_where_they_can_go_on(each_world: World) -> None:
    each_world.limits = Limits(value_bytes=1_000, answer_bytes=500, versions=3)
    async with each_world.open() as state:
        with pytest.raises(InvalidInput):
            await state.persistent.set("big", "x" * 1_000)
        for number in range(10):
            await state.persistent.set(f"k{number}", "x" * 100)
        seen: list[str] = []
        cursor = None
        while True:
            page = await state.persistent.query("k", limit=7, **({"cursor": cursor} if cursor else {}))
            seen.extend(entry["key"] for entry in page["entries"])
            assert page["total_count"] == 10
            cursor = page["next_cursor"]
            if not page["truncated"]:
                break
        assert seen == [f"k{number}" for number in range(10)]
        with pytest.raises(InvalidInput):
            await state.persistent.query("other", cursor="bm9uc2Vuc2U=")
        for number in range(5):
            await state.persistent.set("often", number)
        assert [each["value"] for each in (await state.persistent.history("often"))["versions"]] == [4, 3, 2]
        with pytest.raises(KeyNotFound) as pruned:
            await state.persistent.get("often", version=1)
        assert pruned.value.context["reason"] == "version_pruned"
        for later in (6, 10**20):
            with pytest.raises(KeyNotFound, match="versions 3 to 5 are kept") as unknown:
                await state.persistent.get("often", version=later)
            assert unknown.value.context["reason"] == "version_unknown"
        assert pruned.value.context["oldest_version"] == 3
        with pytest.raises(KeyNotFound) as unknown:
            await state.persistent.get("often", version=9)
        assert unknown.value.context["reason"] == "version_unknown"
        assert (await state.persistent.list("")) == await state.persistent.list()


async def test_a_value_is_the_callers_own(each_world: World) -> None:
    async with each_world.open() as plain:
        state = await plain.with_session()
        given = {"list": [1]}
        await state.session.set("k", given)
        given["list"].append(2)
        found = await state.session.get("k")
        found["list"].append(3)
        assert await state.session.get("k") == {"list": [1]}


async def test_a_version_of_a_key_that_is_deleted_meanwhile_is_gone(
    each_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    each_world.limits = Limits(versions=1)
    async with each_world.open() as state:
        for value in (1, 2):
            await state.persistent.set("k", value)
        store = state.gateway.store
        find_version = store.find_version

        async def find_late(*place: Any) -> Any:
            await state.persistent.delete("k")
            return await find_version(*place)

        monkeypatch.setattr(store, "find_version", find_late)
        with pytest.raises(KeyNotFound) as gone:
            await state.persistent.get("k", version=1)
        assert gone.value.context["reason"] == "key_unknown"
