"""The original system, from npm, for tests that let it read and write what we do."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

import pytest

from benchmarks.npm import NpmFailed, install

HERE = Path(__file__).resolve().parent
PACKAGES = {
    "amqplib": "0.10.9",
    "cbor-x": "1.6.8",
    "ioredis": "5.11.1",
    "moleculer": "0.15.2",
    "mqtt": "5.16.0",
    "msgpack5": "6.1.0",
    "nats": "2.29.3",
}

_keys = count(1)


def find_program(name: str) -> str:
    """A program on the PATH; the test is skipped without."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"needs {name}: apt-get install nodejs npm")
    return found


def installed_packages(
    cache: pytest.Cache, packages: Mapping[str, str] = MappingProxyType(PACKAGES)
) -> Path:
    """The directory of the packages, installed once for all runs of the tests."""
    find_program("node")
    below = Path(str(cache.mkdir("npm")))
    with (below / "lock").open("w") as lock:
        # One process installs, and the others wait for it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            return install(packages, below)
        except NpmFailed as error:
            pytest.skip(f"needs packages from npm: {error}")


def start_node(modules: Path, script: str, *arguments: str) -> subprocess.Popen[str]:
    """Run a script of this directory."""
    return subprocess.Popen(
        [find_program("node"), str(HERE / script), *arguments],
        env={**os.environ, "NODE_PATH": str(modules)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


class Peer:
    """A node of the original system whose wire is in our hands."""

    def __init__(self, modules: Path, serializer: str) -> None:
        self._process = start_node(modules, "peer.js", serializer)
        self.sent: list[dict[str, Any]] = []
        """What it has sent and nobody has taken yet."""
        assert self._read() == {}

    def close(self) -> None:
        """It ends with its input."""
        self._pipe(self._process.stdin).close()
        self._process.wait(30)
        self._pipe(self._process.stdout).close()

    def ask(self, command: str, **arguments: Any) -> Any:
        """Give it a command; returns its answer."""
        stdin = self._pipe(self._process.stdin)
        stdin.write(json.dumps({"command": command, **arguments}) + "\n")
        stdin.flush()
        answered = self._read()
        assert "failure" not in answered, answered["failure"]
        self.sent += answered["sent"]
        return revive(answered.get("answer"))

    def begin(self, command: str, **arguments: Any) -> str:
        """Give it a command whose result comes later; returns what to ask for it with."""
        key = f"key-{next(_keys)}"
        self.ask(command, key=key, **arguments)
        return key

    def take(self, kind: str, number: int = 1) -> list[bytes]:
        """Wait until it has sent some packets of a kind; take all of it, and drop all others."""
        self.wait_for(kind, number)
        taken = [bytes.fromhex(it["hex"]) for it in self.sent if it["kind"] == kind]
        self.sent.clear()
        return taken

    def wait_for(self, kind: str, number: int = 1) -> None:
        """Wait until it has sent some packets of a kind that nobody has taken."""
        have = sum(it["kind"] == kind for it in self.sent)
        if have < number:
            self.ask("until", kind=kind, count=number - have)

    def _read(self) -> Any:
        line = self._pipe(self._process.stdout).readline()
        assert line, "the node ended"
        return json.loads(line)

    @staticmethod
    def _pipe(pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe


def revive(said: Any) -> Any:
    """A value from JSON, with what JSON does not have; undefined is left out, or None."""
    if isinstance(said, list):
        return [revive(item) for item in said]
    if not isinstance(said, dict):
        return said
    match said.get("$"):
        case None:
            return {key: revive(item) for key, item in said.items() if not is_undefined(item)}
        case "bytes":
            return bytes.fromhex(said["value"])
        case "date":
            return datetime.fromtimestamp(said["value"] / 1000, UTC)
        case "bigint":
            return int(said["value"])
        case "number":
            return float(said["value"].replace("Infinity", "inf"))
        case "undefined":
            return None
        case other:
            raise AssertionError(f"a value of sort {other}")


def is_undefined(said: Any) -> bool:
    return isinstance(said, dict) and said.get("$") == "undefined"


def marked(value: Any) -> Any:
    """A value for JSON, with what JSON does not have."""
    if isinstance(value, bytes):
        return {"$": "bytes", "value": value.hex()}
    if isinstance(value, datetime):
        return {"$": "date", "value": round(value.timestamp() * 1000)}
    if isinstance(value, dict):
        return {key: marked(item) for key, item in value.items()}
    return [marked(item) for item in value] if isinstance(value, list) else value
