"""Modules of the tests as processes of their own, which a test may pause and kill."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.source_tree import ROOT


async def start_module(
    module: str, *arguments: str | bytes, stdout: int | None = asyncio.subprocess.PIPE
) -> asyncio.subprocess.Process:
    """Run a module; whatever becomes of us, its input ends with us."""
    paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *arguments),
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        stdin=asyncio.subprocess.PIPE,
        stdout=stdout,
    )


async def end(process: asyncio.subprocess.Process) -> None:
    """End it the hard way, in whatever state it is."""
    if process.returncode is None:
        process.kill()
    await process.wait()
    # The pipes' transports are closed by the loop only after this turn.
    process._transport.close()  # type: ignore[attr-defined]


@asynccontextmanager
async def running_module(module: str, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a module until the end of the block."""
    process = await start_module(module, *arguments, stdout=None)
    try:
        yield process
    finally:
        await end(process)


async def until_input_ends() -> None:
    """What a module awaits that lives for as long as whoever started it."""
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
