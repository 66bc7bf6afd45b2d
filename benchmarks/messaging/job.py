"""What a server and a client process are told to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pathlib import Path

MEBIBYTE = 1024 * 1024
ACKNOWLEDGEMENT = b"\1"
Workload = Literal["rate", "latency", "goodput"]


@dataclass(frozen=True)
class Job:
    """One measurement: the workload, its size and the conditions it runs under."""

    workload: Workload
    loop: str
    seconds: float
    warmup_s: float
    scratch: Path
    in_flight: int = 1
    payload_bytes: int = 100
    certificates: Path | None = None
    # Whether the handler of the server is a coroutine function.
    has_async_handler: bool = False
    # Processors the server and the client are held on; None leaves it to the kernel.
    cores: tuple[int, int] | None = None

    @property
    def subject(self) -> str:
        """Where to send to: `echo` and `echo_async` return the payload, `sink` one byte."""
        if self.workload == "goodput":
            return "sink"
        return "echo_async" if self.has_async_handler else "echo"

    def expected(self, payload: bytes) -> bytes:
        """The reply a correct server gives."""
        return ACKNOWLEDGEMENT if self.workload == "goodput" else payload
