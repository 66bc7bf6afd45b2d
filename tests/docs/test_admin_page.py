"""The page about the API: its commands, said to a real node, are answered as it shows."""

import asyncio
import contextlib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from postroad.admin.cards import read_token
from postroad.admin.http.openapi import make_document
from tests.docs.pages import ROOT, printed, programs
from tests.support.admin.nodes import Served, connect, hang_up, served

TEXT = (ROOT / "docs" / "admin.md").read_text(encoding="utf-8")
_CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_URL = "http://127.0.0.1:8222"


class Example(NamedTuple):
    """A command, and what stands below it."""

    command: str
    answer: str


def examples() -> Iterator[Example]:
    for block in _CONSOLE.findall(TEXT):
        for part in re.sub(r"\\\n\s*", "", block).split("$ curl ")[1:]:
            command, _, answer = part.partition("\n")
            yield Example(command, answer.partition("$ ")[0].strip())


EXAMPLES = [*examples()]


def to_request(command: str, token: str) -> bytes:
    """What curl would say."""
    words = shlex.split(command.replace("$TOKEN", token))
    headers = ["Host: 127.0.0.1", "Connection: close"]
    body, target = "", ""
    while words:
        match words.pop(0):
            case "-H":
                headers.append(words.pop(0))
            case "-d":
                body = words.pop(0)
                headers.append(f"Content-Length: {len(body.encode())}")
            case "-N":
                continue
            case url:
                assert url.startswith(_URL)
                target = url.removeprefix(_URL)
    method = "POST" if body else "GET"
    return "\r\n".join([f"{method} {target} HTTP/1.1", *headers, "", body]).encode()


async def answer_of(node: Served, example: Example) -> str:
    data = Path(node.node.config.node.data)
    reader, writer = await connect(node.admin.url)
    writer.write(to_request(example.command, read_token(data, "alpha") or ""))
    try:
        _, _, body = (await _read(reader, example)).decode().partition("\r\n\r\n")
    finally:
        await hang_up(writer)
    return body.strip()


async def _read(reader: asyncio.StreamReader, example: Example) -> bytes:
    if " -N " not in f" {example.command}":
        return await reader.read()
    # It never ends, so the first event must do.
    found = b""
    async with asyncio.timeout(20.0):
        with contextlib.suppress(asyncio.IncompleteReadError):
            found += await reader.readuntil(b"\r\n\r\n")
            await reader.readuntil(b"\r\n")
            found += await reader.readuntil(b"\n\n")
    return found


def test_examples_are_found() -> None:
    assert len(EXAMPLES) >= 7
    assert 'curl -H "Authorization: Bearer $TOKEN"' in TEXT


async def test_the_answers(tmp_path: Path) -> None:
    async with served(tmp_path / ".postroad", admin={"token": None}) as node:
        await node.node.queues.declare("orders")
        for example in EXAMPLES:
            found = await answer_of(node, example)
            wanted = ".*".join(re.escape(it) for it in example.answer.split("..."))
            assert re.match(wanted, found, re.DOTALL), f"{example.command}\n{found}"


def test_the_program(tmp_path: Path) -> None:
    [(name, wanted)] = printed("admin").items()
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", programs()[name]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.stdout, done.stderr) == (wanted, "")


def test_the_statuses_are_those_of_the_document() -> None:
    told = {
        int(it)
        for row in re.findall(r"^\| (\d{3}(?:, \d{3})*) \|", TEXT, re.M)
        for it in row.split(", ")
    }
    assert told == {int(it) for it in make_document()["components"]["responses"]}
