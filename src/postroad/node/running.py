"""Runs a node as a process of its own: until it is told to stop, in good order."""

from __future__ import annotations

import asyncio
import logging
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from postroad.core import Lifecycle
from postroad.core.errors import ConfigError
from postroad.net.event_loop import loop_factory

from .app import App, load_app
from .node import Node

logger = logging.getLogger(__name__)

Beside = TypeVar("Beside", bound=Lifecycle)

DRAIN_S = 5.0
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_node(
    node: Node,
    beside: Callable[[Node], Beside | None],
    on_start: Callable[[Beside | None], None],
    *,
    drain_s: float = DRAIN_S,
    signals: Sequence[signal.Signals] = SIGNALS,
) -> None:
    """Run a node until SIGTERM, Ctrl-C or an operator, then let what runs end, and stop it.

    A second signal does not wait for what runs; a third ends the process at once.

    Args:
        beside: makes what is started after the node and stopped before it.
        on_start: called when everything runs, with what `beside` made.
        drain_s: how long handlers and flows may take to end. Those that do not go on with the next
            start.
        signals: which ones are heard.
    """
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(run_until_told(node, beside, on_start, drain_s=drain_s, signals=signals))


async def run_until_told(
    node: Node,
    beside: Callable[[Node], Beside | None],
    on_start: Callable[[Beside | None], None],
    *,
    drain_s: float,
    signals: Sequence[signal.Signals] = SIGNALS,
) -> None:
    """As `run_node`, in a loop that runs."""
    task = asyncio.current_task()
    assert task is not None
    ear = _Ear(task.cancel, signals)
    with ear.listening():
        try:
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(node)
                other = beside(node)
                if other is not None:
                    await stack.enter_async_context(other)
                ear.react = node.ask_to_stop
                on_start(other)
                await node.stop_asked.wait()
                if node.failure is not None:
                    # Whoever looks after the process shall see that it has not ended well.
                    raise node.failure
                if drain_s:
                    await _drain(node, ear, drain_s)
        except asyncio.CancelledError:
            # Told to stop before it had started.
            if not ear.heard:
                raise
            task.uncancel()


async def _drain(node: Node, ear: _Ear, drain_s: float) -> None:
    logger.info("%s stops; what runs may take %g s to end", node.name, drain_s)
    draining = asyncio.create_task(node.drain(drain_s), name=f"drain {node.name}")
    ear.react = draining.cancel
    try:
        left = await draining
    except asyncio.CancelledError:
        logger.warning("%s stops at once", node.name)
        return
    if left:
        logger.info("steps that are begun again with the next start: %d", left)


class _Ear:
    """Hears signals, and does what the phase of the node's life asks for."""

    def __init__(self, react: Callable[[], object], signals: Sequence[signal.Signals]) -> None:
        self.react = react
        self._signals = signals
        self.heard = 0

    @contextmanager
    def listening(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in self._signals:
            loop.add_signal_handler(number, self._hear)
        try:
            yield
        finally:
            self._stop_listening()

    def _hear(self) -> None:
        self.heard += 1
        if self.heard > 1:
            # Whoever asks for the third time means it.
            self._stop_listening()
        self.react()

    def _stop_listening(self) -> None:
        loop = asyncio.get_running_loop()
        for number in self._signals:
            loop.remove_signal_handler(number)


def load_program(target: str | None) -> App:
    """What a node is to run; nothing if no program is named.

    Raises:
        ConfigError: it cannot be loaded, with file, line and message; the cause is what it raised.
    """
    if target is None:
        return App()
    try:
        return load_app(target)
    except ConfigError:
        raise
    except SystemExit as error:
        raise ConfigError(
            f"{target} ends the process when it is imported; "
            'put what runs it below `if __name__ == "__main__":`'
        ) from error
    except Exception as error:
        raise ConfigError(tell_failure(error, Path(target).parent)) from error


def tell_failure(error: BaseException, directory: Path) -> str:
    """An error of the user's code in one line: where it was raised there, and what it says.

    Args:
        directory: where the user's code is.
    """
    said = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_shorten(error.filename)}:{error.lineno}: {type(error).__name__}: {error.msg}"
    place = str(directory.resolve())
    frames = [
        it
        for it in traceback.extract_tb(error.__traceback__)
        if it.filename.startswith(place) and "site-packages" not in it.filename
    ]
    if not frames:
        return said
    return f"{_shorten(frames[-1].filename)}:{frames[-1].lineno}: {said}"


def _shorten(filename: str) -> str:
    """Relative to where the user is."""
    path = Path(filename)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
