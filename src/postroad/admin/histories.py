"""Histories of flows in files: exported from a node or a store, and verified with a program."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from postroad.core.errors import ConfigError, PostroadError, UsageError
from postroad.flows import FlowNotFoundError
from postroad.flows.definition import FlowRegistry
from postroad.flows.history_files import (
    ExportedFlow,
    FlowHeader,
    FlowRecordView,
    HistoryWriter,
    read_histories,
)
from postroad.flows.machine.status import FlowStatus
from postroad.flows.verification import FlowReport, FlowVerifier, ReplayResult
from postroad.node.running import load_program

__all__ = [
    "STDIO",
    "FlowReport",
    "FlowStatus",
    "ReplayResult",
    "export_histories",
    "list_ids",
    "verify_histories",
]

STDIO = "-"
"""Stands for the standard output or input."""
ENDING = ".jsonl"

_LIST_PAGE = 1_000
# Times that a flow may continue as new while it is read.
_ATTEMPTS = 10
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")

Do = Callable[[str, Mapping[str, Any]], Any]
"""Does an operation."""


def list_ids(do: Do, chosen: Mapping[str, Any], limit: int) -> list[str]:
    """The ids of flows, the newest first.

    Args:
        chosen: which, as `flow.ls` is told.
    """
    ids: list[str] = []
    while len(ids) < limit:
        page = {"before": ids[-1]} if ids else {}
        rows = do("flow.ls", {**chosen, **page, "limit": min(_LIST_PAGE, limit - len(ids))})
        ids += [row["id"] for row in rows]
        if not rows:
            break
    return ids


def export_histories(
    do: Do, ids: Iterable[str], target: str, skip: Callable[[str], None]
) -> tuple[int, int]:
    """Write flows into a file, or each into a file of its own; returns how many, and their steps.

    Args:
        do: does operations of the node.
        target: a file, a directory that exists or ends with `/`, or `-` for the standard output.
        skip: told why a flow was left out.
    """
    flows = steps = 0
    with _open_target(target) as add:
        for id in ids:
            try:
                flow = _read_flow(do, id)
            except (FlowNotFoundError, UsageError) as error:
                skip(str(error))
                continue
            add(flow)
            flows, steps = flows + 1, steps + len(flow.steps)
    return flows, steps


def _read_flow(do: Do, id: str) -> ExportedFlow:
    """Read a flow page by page, and again from the start if it continues as new meanwhile."""
    for _ in range(_ATTEMPTS):
        first = _read_page(do, id, 0)
        page, steps = first, [*first.steps]
        while page.steps and page.run == first.run:
            page = _read_page(do, id, len(steps))
            steps += page.steps
        if page.run == first.run:
            header = FlowHeader(
                id=first.id,
                name=first.name,
                version=first.version,
                status=first.status.value,
                steps=len(steps),
                state=first.state,
            )
            return ExportedFlow(header, steps)
    raise UsageError(
        f"flow {id} continues as new more often than its history can be read; pause it, then retry"
    )


def _read_page(do: Do, id: str, first: int) -> FlowRecordView:
    return msgspec.convert(do("flow.record", {"id": id, "first": first}), FlowRecordView)


@contextmanager
def _open_target(target: str) -> Iterator[Callable[[ExportedFlow], None]]:
    if target == STDIO:
        with _writing(sys.stdout.buffer) as writer:
            yield writer.add
        sys.stdout.buffer.flush()
    elif target.endswith("/") or Path(target).is_dir():
        directory = _make_directory(target)

        def add(flow: ExportedFlow) -> None:
            name = _UNSAFE.sub("_", flow.header.name)
            path = directory / f"{name}-{flow.header.id}{ENDING}"
            with _create(path) as file, _writing(file) as writer:
                writer.add(flow)

        yield add
    else:
        with _create(Path(target)) as file, _writing(file) as writer:
            yield writer.add


def _make_directory(name: str) -> Path:
    try:
        Path(name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{name} cannot be made: {error.strerror}") from None
    return Path(name)


@contextmanager
def _writing(file: BinaryIO) -> Iterator[HistoryWriter]:
    writer = HistoryWriter(file)
    yield writer
    writer.close()


@contextmanager
def _create(path: Path) -> Iterator[BinaryIO]:
    """Open a file that takes the place of an older one when it is complete."""
    part = path.with_name(f"{path.name}.part")
    try:
        # Only the owner may read what flows were given and did.
        with open(part, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            yield file
        part.replace(path)
    except PostroadError:
        # Some are an OSError too: the node is gone, not the disk.
        raise
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
    finally:
        part.unlink(missing_ok=True)


def verify_histories(files: Iterable[str], program: str) -> list[FlowReport]:
    """Replay the flows of files with the flows of a program; steps are not run.

    Raises:
        ConfigError: the program cannot be loaded, or a file cannot be opened.
    """
    # What the program and its flows print is not part of the answer.
    with redirect_stdout(sys.stderr):
        verifier = FlowVerifier(FlowRegistry(load_program(program).flows))
        return asyncio.run(_verify(verifier, files))


async def _verify(verifier: FlowVerifier, files: Iterable[str]) -> list[FlowReport]:
    reports: list[FlowReport] = []
    for name in _find_files(files):
        with _open_file(name) as file:
            try:
                reports.extend(
                    msgspec.structs.replace(verifier.verify(flow), file=name)
                    for flow in read_histories(file)
                )
            except UsageError as error:
                reports.append(FlowReport(ReplayResult.UNREADABLE, str(error), file=name))
    return reports


def _find_files(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        if name == STDIO or not Path(name).is_dir():
            yield name
            continue
        files = sorted(str(path) for path in Path(name).glob(f"*{ENDING}"))
        if not files:
            raise ConfigError(f"directory {name} has no files *{ENDING} of `postroad flow export`")
        yield from files


@contextmanager
def _open_file(name: str) -> Iterator[BinaryIO]:
    if name == STDIO:
        yield sys.stdin.buffer
        return
    try:
        with open(name, "rb") as file:
            yield file
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror}") from None
