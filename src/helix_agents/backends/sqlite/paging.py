"""A page of any listing in one statement: the total and the rows belong to the same moment."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from helix_agents.backends.sqlite.connection import Connection, Row, Value
from helix_agents.domain.paging import Page

T = TypeVar("T")


def read_page(
    connection: Connection,
    *,
    columns: str,
    source: str,
    order: str,
    values: Sequence[Value],
    offset: int,
    limit: int,
    item: Callable[[Row], T],
) -> Page[T]:
    """Rows of `source` (tables and conditions) as a page. The first column must never be NULL."""
    rows = connection.all(
        f"SELECT counted.total, paged.* FROM (SELECT count(*) AS total FROM {source}) AS counted"
        f" LEFT JOIN (SELECT {columns} FROM {source} ORDER BY {order} LIMIT ? OFFSET ?) AS paged",
        (*values, *values, limit, offset),
    )
    items = tuple(item(row[1:]) for row in rows if row[1] is not None)
    return Page(items=items, total=rows[0][0], offset=offset, limit=limit)
