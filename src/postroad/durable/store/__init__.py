"""Where a node keeps its mail: SQLite, PostgreSQL, or memory for tests."""

from .locations import store_from_url
from .memory import MemoryDisk, MemoryStore
from .postgres import PostgresStore
from .rows import DeadGroup, DeadLetter
from .sqlite import SqliteStore
from .store import Store
from .units import Unit

__all__ = [
    "DeadGroup",
    "DeadLetter",
    "MemoryDisk",
    "MemoryStore",
    "PostgresStore",
    "SqliteStore",
    "Store",
    "Unit",
    "store_from_url",
]
