"""Short helpers about entries for the contracts: write this, remove that, read it all."""

from helix_agents.domain.entries import Change, Changed, Entry, EntryTransaction, Put, Remove, Transacted
from helix_agents.domain.records import JSON, decode_json, encode
from helix_agents.ports.entries import EntryStore

SCOPE = "agent:ann"
KEPT = 5


def put(key: str, value: JSON, scope: str = SCOPE, **options: object) -> Put:
    """A tracked write: announced, with some history."""
    text = encode(value).decode()
    settings = {"keep_versions": KEPT, "announce": True, **options}
    return Put(scope=scope, key=key, value=text, **settings)  # pyright: ignore[reportArgumentType]


def remove(key: str, scope: str = SCOPE, **options: object) -> Remove:
    """A tracked removal."""
    settings = {"keep_versions": KEPT, "announce": True, **options}
    return Remove(scope=scope, key=key, **settings)  # pyright: ignore[reportArgumentType]


async def write(store: EntryStore, *changes: Change, owner: str = "ann", **options: object) -> Transacted:
    """One transaction."""
    return await store.transact(
        EntryTransaction(changes=changes, owner=owner, **options)  # pyright: ignore[reportArgumentType]
    )


async def set_value(store: EntryStore, key: str, value: JSON, scope: str = SCOPE, **options: object) -> Changed:
    """One tracked write and its result."""
    return (await write(store, put(key, value, scope, **options))).results[0]


async def values(store: EntryStore, scope: str = SCOPE, prefix: str = "") -> dict[str, JSON]:
    """Every value of a scope by key."""
    page = await store.list_entries(scope, prefix=prefix, limit=10_000, values=True)
    return {entry.key: decode_json(entry.value or "") for entry in page.items}


async def everything(store: EntryStore, scope: str = SCOPE) -> list[tuple[str, tuple[tuple[int, JSON], ...]]]:
    """Every key of a scope with its kept versions, newest first."""
    page = await store.list_entries(scope, limit=10_000)
    return [
        (
            entry.key,
            tuple((each.version, decode_json(each.value or "")) for each in await history(store, entry.key, scope)),
        )
        for entry in page.items
    ]


async def history(store: EntryStore, key: str, scope: str = SCOPE) -> tuple[Entry, ...]:
    """The kept versions of a key."""
    return await store.list_versions(scope, key)


async def recount(store: EntryStore, scope: str = SCOPE) -> tuple[int, int]:
    """Keys and size of a scope, counted version by version."""
    page = await store.list_entries(scope, limit=10_000)
    sizes = [each.size for entry in page.items for each in await history(store, entry.key, scope)]
    return page.total, sum(sizes)
