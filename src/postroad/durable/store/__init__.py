"""Where a node keeps its messages: SQLite, PostgreSQL, or memory for tests."""

from __future__ import annotations

from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from postroad.durable.store.backends.memory import MemoryDisk, MemoryStore
from postroad.durable.store.backends.postgres import PostgresStore
from postroad.durable.store.backends.sqlite import SqliteStore
from postroad.durable.store.tables.rows import DeadLetter, DeadLetterGroup

from .mutations import Mutation
from .store import Store

_POSTGRES = ("postgresql://", "postgres://")

__all__ = [
    "DeadLetter",
    "DeadLetterGroup",
    "MemoryDisk",
    "MemoryStore",
    "Mutation",
    "PostgresStore",
    "SqliteStore",
    "Store",
    "store_from_url",
]


def store_from_url(location: str) -> Store:
    """The store at a path, or in a database `postgresql://user@host/name?schema=postroad`."""
    if not location.startswith(_POSTGRES):
        return SqliteStore(location)
    parts = urlsplit(location)
    options = dict(parse_qsl(parts.query))
    schema = options.pop("schema", "postroad")
    # The driver takes no + for a blank.
    query = urlencode(options, quote_via=quote)
    return PostgresStore(urlunsplit(parts._replace(query=query)), schema)
