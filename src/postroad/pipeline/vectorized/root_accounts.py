"""Accounts of roots whose rows met after shuffles."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from postroad.pipeline.connectors.connector import AnySegment
from postroad.pipeline.coordinator.records import describe_exception
from postroad.pipeline.vectorized.acks import Ids, Indexes, ack_values
from postroad.pipeline.vectorized.shuffle_columns import ShuffleColumns
from postroad.pipeline.vectorized.shuffle_rows import ShuffleRow, ShuffleRowKind, decode_again
from postroad.pipeline.vectorized.stage_executor import WindowInput

_decode_addition = msgspec.msgpack.Decoder(tuple[int, int, object, AnySegment]).decode


class RootAccount:
    """What is known of a root."""

    __slots__ = (
        "additions",
        "bits",
        "failures",
        "generation",
        "missing",
        "published",
        "put",
        "segment",
        "task",
    )

    def __init__(self) -> None:
        self.task: str | None = None
        self.generation = 0
        self.segment = b""
        self.bits = 0
        self.missing = 0
        self.failures: list[tuple[str, str]] = []
        self.additions: list[WindowInput] = []
        self.published: frozenset[int] = frozenset()
        self.put: list[int] = []

    @property
    def is_done(self) -> bool:
        return self.task is not None and not (self.failures or self.bits or self.missing)


class RootAccounts:
    """What is known of the roots of some rows: most are done with, and need no account.

    Attributes:
        rows: without those that tell something else.
        place: of each row, the place of its root.
        published: of roots that come again, by their places: what is written already.
        written: what was written now: ids, and for each the place of its root.
    """

    def __init__(self, rows: ShuffleColumns) -> None:
        self.rows = rows
        self._roots, self.place = np.unique(rows.root, return_inverse=True)
        self._bits = np.zeros(len(self._roots), dtype=np.uint64)
        self._missing = np.zeros(len(self._roots), dtype=np.int64)
        np.bitwise_xor.at(self._bits, self.place, rows.bits)
        np.add.at(self._missing, self.place, rows.missing)
        # Where the row is that a root came with.
        self._first = np.full(len(self._roots), -1, dtype=np.intp)
        firsts = np.flatnonzero(rows.kind == ShuffleRowKind.ROOT)
        self._first[self.place[firsts]] = firsts
        self._accounts: dict[int, RootAccount] = {}
        self.published: dict[int, frozenset[int]] = {}
        self.written: list[tuple[Indexes, Ids]] = []
        special = (ShuffleRowKind.AGAIN, ShuffleRowKind.FAILURE, ShuffleRowKind.ADDITION)
        for row in np.flatnonzero(np.isin(rows.kind, special)).tolist():
            root = int(self.place[row])
            account = self.account(root)
            _learn(account, rows.row(row))
            if account.published:
                self.published[root] = account.published

    def account(self, place: int) -> RootAccount:
        """That of one root."""
        account = self._accounts.get(place)
        if account is None:
            account = self._accounts[place] = RootAccount()
            if self._first[place] >= 0:
                _learn(account, self.rows.row(int(self._first[place])))
        return account

    def acknowledge(self, outputs: Indexes) -> None:
        """Some outputs are written."""
        generations = self.rows.generation[outputs]
        for generation in np.unique(generations).tolist():
            some = outputs[generations == generation]
            values = ack_values(self.rows.edge[some], generation)
            np.bitwise_xor.at(self._bits, self.place[some], values)
            np.subtract.at(self._missing, self.place[some], 1)

    def unfinished(self) -> Iterator[tuple[int, RootAccount]]:
        """Roots that are not simply done with, and their ids."""
        is_odd = (self._first < 0) | (self._bits != 0) | (self._missing != 0)
        is_odd[list(self._accounts)] = True
        places = np.flatnonzero(is_odd).tolist()
        for place in places:
            account = self.account(place)
            account.bits, account.missing = int(self._bits[place]), int(self._missing[place])
        for owners, ids in self.written if places else ():
            for at in np.flatnonzero(is_odd[owners]).tolist():
                self._accounts[int(owners[at])].put.append(int(ids[at]))
        for place in places:
            yield int(self._roots[place]), self._accounts[place]


def _learn(root: RootAccount, row: ShuffleRow) -> None:
    match row.kind:
        case ShuffleRowKind.ROOT:
            root.task, root.generation, root.segment = row.task, row.generation, row.payload
        case ShuffleRowKind.AGAIN:
            root.task, root.generation = row.task, row.generation
            root.segment, published = decode_again(row.payload)
            root.published = frozenset(published)
        case ShuffleRowKind.FAILURE:
            root.failures.append((row.task, row.payload.decode()))
        case ShuffleRowKind.ADDITION:
            try:
                root.additions.append(WindowInput(row.task, *_decode_addition(row.payload)))
            except Exception as error:
                root.failures.append((row.task, describe_exception(error)))
