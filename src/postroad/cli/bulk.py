"""One operation on many things, one after the other: failures are reported, the rest goes on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import click

from postroad.admin import MessagingError, PostroadError, StoreError

from .failures import code_of
from .main import EXIT_INTERRUPTED, EXIT_OK
from .screen import progress_bar, visible
from .values import tell_count

_SHOWN = 10
# The remaining calls would fail for the same reason.
_FATAL = (MessagingError, StoreError, PermissionError)


def do_each(
    ids: Sequence[str], do: Callable[[str], Any], on_result: Callable[[Any], None], *, verb: str,
    noun: str,
) -> int:  # fmt: skip
    """Do something to each of several things, and return the exit code.

    Ctrl-C ends it after the current one, a second Ctrl-C at once.

    Raises:
        PostroadError: no more calls can succeed, for instance because the node is away.
    """
    failures: list[PostroadError] = []
    count = 0
    with progress_bar(len(ids), verb) as show, _interruptible() as is_interrupted:
        for id in ids:
            if is_interrupted():
                break
            try:
                on_result(do(id))
            except _FATAL:
                click.echo(f"postroad: {_summary(count, failures, ids, noun)}", err=True)
                raise
            except PostroadError as error:
                if len(failures) < _SHOWN:
                    click.echo(f"postroad: {_name(id, noun, error)}", err=True)
                failures.append(error)
            count += 1
            show(count)
    if is_interrupted():
        click.echo(f"postroad: {_summary(count, failures, ids, noun)}", err=True)
        return EXIT_INTERRUPTED
    if failures:
        click.echo(f"postroad: {_summary(count, failures, ids, noun)}", err=True)
        return code_of(failures[0])
    return EXIT_OK


def tell_first(ids: Sequence[str]) -> str:
    """The first of many ids."""
    more = f" and {len(ids) - _SHOWN:,} more" if len(ids) > _SHOWN else ""
    return f"{', '.join(ids[:_SHOWN])}{more}"


def _name(id: str, noun: str, error: PostroadError) -> str:
    text = visible(str(error))
    return text if id in text else f"{noun} {id}: {text}"


def _summary(count: int, failures: Sequence[PostroadError], ids: Sequence[str], noun: str) -> str:
    summary = f"{count - len(failures):,} of {tell_count(len(ids), noun)} done"
    if failures:
        summary += f", {len(failures):,} failed"
    left = len(ids) - count
    return f"{summary}, {left:,} not tried" if left else summary


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Let the first Ctrl-C only set a flag; yields a function that returns it."""
    is_interrupted = False

    def note(_number: int, _frame: FrameType | None) -> None:
        nonlocal is_interrupted
        if is_interrupted:
            raise KeyboardInterrupt
        is_interrupted = True

    if threading.current_thread() is not threading.main_thread():
        # Only the main thread gets signals.
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: is_interrupted
    finally:
        signal.signal(signal.SIGINT, before)
