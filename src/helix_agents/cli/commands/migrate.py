"""`helix migrate`: brings a store to the schema this version writes, before new code starts on it."""

import asyncio

import click

from helix_agents.cli.options import json_option, store_option
from helix_agents.cli.output import Output
from helix_agents.domain.urls import shown_url


@click.command()
@store_option
@json_option
@click.pass_obj
def command(output: Output, store_url: str) -> None:
    """Bring the store to the current schema. Safe to repeat, and to run from several machines at once."""
    before, after = asyncio.run(migrate(output, store_url))
    store = shown_url(store_url)
    output.answer({"store": store, "schema_version": after, "previous_version": before})
    if before is None:
        output.say(f"{store} was created with schema version {after}.")
    elif before == after:
        output.say(f"{store} already has schema version {after}.")
    else:
        output.say(f"{store} was migrated from schema version {before} to {after}.")


async def migrate(output: Output, url: str) -> tuple[int | None, int]:
    """Migrate by opening the store; returns the schema version before, if there was one, and now."""
    from helix_agents.domain.errors import SchemaTooOldError, StoreUnavailableError
    from helix_agents.ports.backend import open_backend

    before: int | None = None
    try:
        async with await open_backend(url, migrate="check") as backend:
            before = await backend.state.migration_version()
    except SchemaTooOldError as old:
        before = old.found or None
        if before is not None:
            output.note(f"schema version {old.found} is older than {old.needed}; a large store may take a while")
    except StoreUnavailableError:
        # A store that does not exist yet is created below; a store that cannot be reached fails again there.
        pass
    async with await open_backend(url) as backend:
        return before, await backend.state.migration_version()
