"""Fencing of bridge managers: only the one that took the last token of a store may commit."""

from __future__ import annotations

from postroad.core import Address, to_address
from postroad.core.errors import FencedError
from postroad.durable.store.backends.backend import StoreConnection
from postroad.durable.store.tables.schema import read_meta, write_meta
from postroad.durable.store.tables.store_tables import StoreTables

TOKEN = "bridge.token"
PLACE = "bridge.place"


def check_fencing_token(database: StoreConnection, token: int) -> None:
    """Raise FencedError if another bridge manager has taken over the store."""
    newest_token = int(read_meta(database, TOKEN) or 0)
    if newest_token != token:
        raise FencedError(f"bridge manager {newest_token} has taken over from {token}")


def acquire_fencing_token(tables: StoreTables, name: str, address: Address) -> int:
    """Take over the store as its bridge manager, with its address; returns the token."""
    token = int(read_meta(tables.database, TOKEN) or 0) + 1
    write_meta(tables.database, TOKEN, str(token))
    write_meta(tables.database, PLACE, f"{name} {address}")
    return token


def find_manager(database: StoreConnection) -> tuple[str, Address] | None:
    """Return name and address of the manager that took over last."""
    place = read_meta(database, PLACE)
    if place is None:
        return None
    name, _, address = place.partition(" ")
    return name, to_address(address)
