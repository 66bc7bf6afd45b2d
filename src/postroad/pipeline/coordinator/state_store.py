"""The state that functions of groups keep for each key, changed in the commit of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from postroad.durable.store.backends.backend import StoreConnection
from postroad.durable.store.tables.schema import read_meta, write_meta

_SCHEMA = "pipeline.states"
_TABLE = """CREATE TABLE postroad_pipeline_states (
    job TEXT NOT NULL, task TEXT NOT NULL, key {blob} NOT NULL, state {blob} NOT NULL,
    PRIMARY KEY (job, task, key))"""
# A statement has only so many parameters.
_KEYS_AT_ONCE = 500


def create_state_table(types: Mapping[str, str], database: StoreConnection) -> None:
    """Make the table, if it is not there."""
    if read_meta(database, _SCHEMA) is None:
        database.execute(_TABLE.format_map(types))
        write_meta(database, _SCHEMA, "1")


class StateStore:
    """The states of one job. Keys and states are bytes."""

    def __init__(self, database: StoreConnection, job: str) -> None:
        self._database = database
        self._job = job

    def read(self, task: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The states of some keys, of those that have one."""
        return dict(self._read(task, keys))

    def _read(self, task: str, keys: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            some = keys[start : start + _KEYS_AT_ONCE]
            marks = ", ".join("?" * len(some))
            rows = self._database.execute(
                "SELECT key, state FROM postroad_pipeline_states"
                f" WHERE job = ? AND task = ? AND key IN ({marks})",
                (self._job, task, *some),
            )
            yield from ((bytes(key), bytes(state)) for key, state in rows)

    def write(self, changes: Sequence[tuple[str, bytes, bytes | None]]) -> None:
        """Change the states of some keys of tasks; None forgets one."""
        kept = [(task, key, state) for task, key, state in changes if state is not None]
        gone = [(task, key) for task, key, state in changes if state is None]
        self._database.execute_many(
            "DELETE FROM postroad_pipeline_states WHERE job = ? AND task = ? AND key = ?",
            ((self._job, *row) for row in gone),
        )
        self._database.execute_many(
            "INSERT INTO postroad_pipeline_states (job, task, key, state) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (job, task, key) DO UPDATE SET state = excluded.state",
            ((self._job, *row) for row in kept),
        )
