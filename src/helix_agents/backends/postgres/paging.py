"""A page of any listing in one statement: the total and the rows belong to the same moment."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from helix_agents.backends.postgres.connection import Row, Value
from helix_agents.backends.postgres.database import Database
from helix_agents.domain.paging import Page

T = TypeVar("T")


async def read_page(
    database: Database,
    *,
    columns: str,
    source: str,
    order: str,
    values: Sequence[Value],
    offset: int,
    limit: int,
    item: Callable[[Row], T],
) -> Page[T]:
    """Rows of `source` (tables and conditions) as a page."""
    rows = await database.all(
        f"SELECT counted.total, paged.* FROM (SELECT count(*) AS total FROM {source}) AS counted"
        f" LEFT JOIN (SELECT row_number() OVER (ORDER BY {order}) AS place, {columns} FROM {source}"
        f" ORDER BY {order} LIMIT ? OFFSET ?) AS paged ON true ORDER BY paged.place",
        (*values, *values, limit, offset),
    )
    items = tuple(item(tuple(row)[2:]) for row in rows if row[1] is not None)
    return Page(items=items, total=rows[0][0], offset=offset, limit=limit)
