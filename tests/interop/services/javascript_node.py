"""A whole node of the original system in a process of its own, worked by commands."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any, Self

from tests.support.deadlines import DEADLINE_S
from tests.support.services.javascript import HERE, find_program, marked, revive

LINE_BYTES_MAX = 64 * 1024 * 1024


class JavascriptError(Exception):
    """What a call of the other node failed with.

    Attributes:
        told: all that is known of it there.
        meta: of the call.
    """

    def __init__(self, told: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        super().__init__(f"{told['name']}: {told['message']}")
        self.told = told
        self.meta = meta


class JavascriptNode:
    """The other node. Commands may overlap; each waits for its own answer."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._ids = count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._reading = asyncio.get_running_loop().create_task(self._read())

    @classmethod
    async def spawn(cls, modules: Path, options: Mapping[str, Any]) -> Self:
        """Start the process; its broker is started by a command."""
        process = await asyncio.create_subprocess_exec(
            find_program("node"),
            str(HERE / "node.js"),
            json.dumps(options),
            env={**os.environ, "NODE_PATH": str(modules)},
            stdin=PIPE,
            stdout=PIPE,
            limit=LINE_BYTES_MAX,
        )
        return cls(process)

    # Its end.

    async def close(self) -> None:
        """It ends with its input, without a goodbye to other nodes."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._ended()

    async def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        await self._ended()

    def pause(self) -> None:
        """Make it hang."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    async def _ended(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await self._process.wait()
            await self._reading

    # Commands.

    async def ask(self, command: str, **arguments: Any) -> Any:
        """Give it a command and wait for the answer."""
        stdin = self._process.stdin
        assert stdin is not None
        number = next(self._ids)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        line = json.dumps({"id": number, "command": command, **arguments})
        stdin.write(line.encode() + b"\n")
        async with asyncio.timeout(DEADLINE_S):
            return await answer

    async def call(
        self,
        action: str,
        params: Any = None,
        *,
        stream: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """Let it call an action; raises JavascriptError if that fails there."""
        result, _ = await self.call_with_meta(action, params, stream=stream, **options)
        return result

    async def call_with_meta(
        self,
        action: str,
        params: Any = None,
        *,
        stream: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> tuple[Any, Any]:
        """As `call`; gives also the meta that the call has in the end."""
        told = {} if params is None else {"params": marked(params)}
        if stream is not None:
            told["stream"] = marked({**stream})
        answer = await self.ask("call", action=action, options=marked(options), **told)
        if "error" in answer:
            raise JavascriptError(answer["error"], answer["meta"])
        return answer.get("answer"), answer["meta"]

    async def heard(self, number: int = 1) -> list[Any]:
        """Take what its handlers of events got, once there is so much."""
        return [*await self.ask("heard", count=number)]

    async def has_services(self, *names: str) -> None:
        """Wait until it knows services."""
        await self.ask("services", names=names, are=True)

    async def lacks_services(self, *names: str) -> None:
        """Wait until it does not know services."""
        await self.ask("services", names=names, are=False)

    # Answers.

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            said = json.loads(line)
            waiting = self._waiting.pop(said["id"])
            if waiting.done():
                continue
            if "failure" in said:
                waiting.set_exception(AssertionError(said["failure"]))
            else:
                waiting.set_result(revive(said.get("answer")))
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(AssertionError("the node ended"))
