"""`helix migrate`: brings a store to the schema this version writes, before new code starts on it."""

import asyncio

import click

from helix_agents.cli.options import json_option, store_option
from helix_agents.cli.output import Output


@click.command()
@store_option
@json_option
@click.pass_obj
def command(output: Output, store_url: str) -> None:
    """Bring the store to the current schema. Safe to repeat, and to run from several machines at once."""
    schema = asyncio.run(migrate(store_url))
    output.say(f"{store_url} has schema version {schema}.")
    output.answer({"store": store_url, "schema_version": schema})


async def migrate(url: str) -> int:
    """Migrate by opening, and answer the schema version the store has now."""
    from helix_agents.ports.backend import open_backend

    async with await open_backend(url) as backend:
        return await backend.state.migration_version()
