"""Deliveries to webhooks, as the command line shows them and has them tried again."""

from collections.abc import Sequence

from helix_agents.cli.exit_codes import ExitCode
from helix_agents.cli.output import Output
from helix_agents.cli.plain import plain, plain_page, shown_time
from helix_agents.cli.stored import open_stored
from helix_agents.domain.errors import DeliveryNotFoundError
from helix_agents.domain.paging import MAX_LIMIT, whole_list
from helix_agents.domain.webhooks import Delivery, DeliveryState
from helix_agents.system import RandomIds


async def list_deliveries(
    output: Output, url: str, *, states: Sequence[DeliveryState], offset: int, limit: int
) -> None:
    """List deliveries, newest first."""
    async with open_stored(url) as backend:
        page = await backend.state.list_deliveries(states=states, offset=offset, limit=limit)
    output.answer(plain_page(page))
    output.table(
        ("delivery", "webhook", "event", "session", "state", "tries", "next", "last error"),
        [
            (
                each.delivery_id,
                each.webhook,
                each.event,
                each.session_id,
                each.state,
                str(each.attempts),
                "-" if each.is_over else shown_time(each.next_at),
                each.last_error or "-",
            )
            for each in page.items
        ],
    )
    if page.has_more:
        shown = page.offset + len(page.items)
        output.note(f"{page.total - shown} more; --offset {shown}")


async def retry_deliveries(output: Output, url: str, delivery_ids: Sequence[str]) -> ExitCode:
    """Have deliveries tried again; without ids, all that were given up."""
    # Imported here because commands that only look need nothing of the executor.
    from helix_agents.runtimes.executor.webhooks import Webhooks

    unknown: list[str] = []
    again: list[Delivery] = []
    async with open_stored(url) as backend:
        store = backend.state
        if not delivery_ids:
            given_up = await whole_list(
                lambda offset: store.list_deliveries(states=("given_up",), offset=offset, limit=MAX_LIMIT)
            )
            delivery_ids = [each.delivery_id for each in given_up]
        webhooks = Webhooks(store, RandomIds())
        for delivery_id in delivery_ids:
            try:
                again.append(await webhooks.retry(delivery_id))
            except DeliveryNotFoundError as problem:
                unknown.append(delivery_id)
                output.note(str(problem))
    output.answer({"retried": plain(again), "unknown": unknown})
    output.say(f"{len(again)} to be tried again.")
    return ExitCode.FAILED if unknown else ExitCode.OK
