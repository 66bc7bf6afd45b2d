"""A program at a terminal that a test types on."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from typing import Self

from tests.support.deadlines import DEADLINE_S

_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07]*\x07|[@-Z\\-_=>])")
_CTRL_C, _CTRL_D = "\x03", "\x04"


class Terminal:
    """`python -m postroad` at a terminal of its own; what it shows is kept without colours."""

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], *, columns: int = 100
    ) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        # The size of the terminal is what counts.
        inherited = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "postroad", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**inherited, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", **environment},
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(slave)
        self.raw = ""
        self._seen = 0

    @property
    def text(self) -> str:
        """All that was shown, without what only moves and colours."""
        return _ESCAPES.sub("", self.raw).replace("\r", "")

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._master, keys.encode())

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self.type(_CTRL_C)

    def end(self) -> None:
        """Press Ctrl-D."""
        self.type(_CTRL_D)

    def wait_for(self, expected: str) -> None:
        """Read until a text is shown that was not before."""
        if not self.shows(expected, DEADLINE_S):
            raise AssertionError(f"no {expected!r} in {self.text[self._seen :]!r}")
        self._seen += self.text[self._seen :].index(expected) + len(expected)

    def press_until(self, key: str, expected: str) -> None:
        """Press a key again and again until a text is shown: once may be too soon."""
        for _ in range(20):
            self.type(key)
            if self.shows(expected, 1.0):
                break
        self.wait_for(expected)

    def shows(self, expected: str, within_s: float) -> bool:
        """Whether a text comes that was not waited for yet."""
        deadline = time.monotonic() + within_s
        while expected not in self.text[self._seen :]:
            if not self._read(deadline):
                return False
        return True

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:
            # So Linux tells that nobody has the other end any more.
            return False
        self.raw += data.decode("utf-8", "replace")
        return bool(data)

    def wait(self) -> int:
        """The exit code, when it ends."""
        deadline = time.monotonic() + DEADLINE_S
        while self._read(deadline):
            continue
        return self._process.wait(DEADLINE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
        os.close(self._master)


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
