"""A store from a text, as people write it in settings."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from .postgres import PostgresStore
from .sqlite import SqliteStore
from .store import Store

_POSTGRES = ("postgresql://", "postgres://")


def store_from_url(location: str) -> Store:
    """The store at a path, or in a database `postgresql://user@host/name?schema=postroad`."""
    if not location.startswith(_POSTGRES):
        return SqliteStore(location)
    parts = urlsplit(location)
    options = dict(parse_qsl(parts.query))
    schema = options.pop("schema", "postroad")
    return PostgresStore(urlunsplit(parts._replace(query=urlencode(options))), schema)
