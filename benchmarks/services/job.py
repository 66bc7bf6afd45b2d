"""What a pair of nodes is told to do."""

from __future__ import annotations

from dataclasses import dataclass

NAMESPACE = "benchmark"
SERVER = "server"
CLIENT = "client"
GROUPS = 10


@dataclass(frozen=True)
class Job:
    """One measurement between two nodes."""

    transporter: str
    """`tcp`, `nats` or `cells`."""
    address: str
    """Of the server of the transporter; for the others two ports, of the server and the client."""
    loop: str
    seconds: float
    warmup_s: float
    in_flight: int
    workload: str = "call"
    """`call`, or `event`: one event for ten groups."""

    @property
    def ports(self) -> tuple[int, int]:
        """Where the server and the client listen."""
        server, client = self.address.split(",")
        return int(server), int(client)
