"""Brings the code of a flow to where its record ends, by giving it what it was given before."""

from __future__ import annotations

from collections.abc import Callable

from . import waiting
from .code import Code
from .log import Diverged, Log, outcome_of
from .records import Kind, Record
from .requests import Statement
from .transactions import decode_results


def replay(code: Code, log: Log, move_time: Callable[[int], None]) -> None:
    """Start the code, and feed it its record in the order in which that was written.

    Raises:
        Diverged: the code asks for something else.
    """
    code.start()
    while not log.is_over:
        record = log.upcoming
        if record.kind is Kind.TRANSACTION:
            # Time moves when its block is left.
            _replay_transaction(code, log, record, move_time)
            continue
        move_time(record.at_ms)
        ask = waiting.asked_at(code, record.position)
        if ask is None:
            if code.end is not None and isinstance(code.end.error, Diverged):
                raise code.end.error
            raise log.diverged(waiting.describe(code))
        log.take(ask)
        code.resume(record.position, outcome_of(ask, record))


def _replay_transaction(
    code: Code, log: Log, record: Record, move_time: Callable[[int], None]
) -> None:
    """Give the code what the statements of a transaction returned, until it ends it."""
    for number, result in enumerate(decode_results(record.value)):
        ask = waiting.asked_at(code, (*record.position, number))
        if not isinstance(ask, Statement) or ask.digest != result.digest:
            raise log.diverged(waiting.describe(code))
        ask.transaction.add(ask, result)
        code.resume(ask.position, result.read())
    if not log.is_over and log.upcoming is record:
        ask = waiting.asked_at(code, record.position)
        if ask is None:
            raise log.diverged(waiting.describe(code))
        # The code had been cut short before it.
        move_time(record.at_ms)
        log.take(ask)
        code.resume(ask.position, outcome_of(ask, record))
