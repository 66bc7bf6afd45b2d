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
    # Processors the server and the client are held on; None leaves it to the kernel.
    cores: tuple[int, int] | None = None

    @property
    def subject(self) -> str:
        """Where to send to: `echo` returns the payload, `sink` one byte."""
        return "sink" if self.workload == "goodput" else "echo"

    def expected(self, payload: bytes) -> bytes:
        """The reply a correct server gives."""
        return ACKNOWLEDGEMENT if self.workload == "goodput" else payload
