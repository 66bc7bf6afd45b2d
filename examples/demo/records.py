"""What node processes and the story tell each other: lines of JSON, of these types."""

from __future__ import annotations

import enum

import msgspec


class Answering(msgspec.Struct, frozen=True, kw_only=True, tag="answer"):
    """Answer requests."""

    tally: str
    """File that counts the requests handled; it outlives a killed process."""


class Calling(msgspec.Struct, frozen=True, kw_only=True, tag="call"):
    """Put load on another node."""

    peer: str
    """Its address."""
    callers: int
    payload_bytes: int


class Mailing(msgspec.Struct, frozen=True, kw_only=True, tag="mail"):
    """Exchange durable messages with another node."""

    peer: str
    """Its name."""
    address: str
    store: str
    """File of this node's mail, and of its own tables; it outlives a killed process."""
    runs: str
    """File that counts how often the handler was called, whatever came of it."""
    pays: bool
    """Whether this is the node that pays, or the one that books."""


class Agreeing(msgspec.Struct, frozen=True, kw_only=True, tag="agree"):
    """Be a bank that agrees on payments with another one, by flows."""

    peer: str
    """Its name."""
    address: str
    store: str
    """File of this node's flows, and of its own tables; it outlives a killed process."""
    runs: str
    """File that counts how often a step was begun, whatever came of it."""


class Linking(msgspec.Struct, frozen=True, kw_only=True, tag="link"):
    """Be a core: pass messages on between domains."""

    cores: dict[str, str]
    """Addresses of the cores that were there before."""


class Belonging(msgspec.Struct, frozen=True, kw_only=True, tag="belong"):
    """Be a satellite: subscribe to a topic, and consume a queue or send to both."""

    cores: dict[str, str]
    journal: str
    """File of what it did with each message."""
    sends: bool
    """Whether this is the one that calls and publishes, or one that consumes."""


class Serving(msgspec.Struct, frozen=True, kw_only=True, tag="serve"):
    """Be a node of services, over cells."""

    cores: dict[str, str]
    """The address of the core; nothing if this is the core."""
    journal: str
    """File of what it did with each call, event and stream; it outlives a killed process."""
    offers: str
    """The name of its service."""
    sends: bool
    """Whether this is the one that makes orders."""


class Meeting(msgspec.Struct, frozen=True, kw_only=True, tag="meet"):
    """Be a node of services over NATS, together with one of Moleculer, and call each other."""

    nats_server: str
    """The program; this and the next are started by the node, and end with it."""
    javascript: str
    """The program that runs the other node."""
    modules: str
    """Directory of the packages that it needs."""
    place: str
    """Directory in which the server writes where it listens."""


class Posting(msgspec.Struct, frozen=True, kw_only=True, tag="post"):
    """Post payments to another node, and note what it has cleared."""

    peer: str
    """Its name."""
    address: str
    store: str
    """File of this node's mail, and of its own tables."""


class Clearing(msgspec.Struct, frozen=True, kw_only=True, tag="clear"):
    """Clear the payments of another node, with a job on Spark."""

    peer: str
    """Its name."""
    address: str
    store: str
    """File of this node's mail, and of the job's account; it outlives a killed process."""
    place: str
    """Directory of the checkpoint, and of whatever Spark writes besides."""


NodeTask = (
    Answering
    | Calling
    | Mailing
    | Linking
    | Belonging
    | Serving
    | Meeting
    | Agreeing
    | Posting
    | Clearing
)


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The first line a node process is sent."""

    name: str
    bind: str
    certificate: str
    key: str
    trust: str
    task: NodeTask


class Command(enum.Enum):
    """Later lines a node process is sent. The end of its input means: end at once."""

    BEGIN = "begin"
    """Call and publish from now on."""
    REST = "rest"
    """Pay, post or send nothing more, say so, and go on with everything else."""
    STOP = "stop"
    """Finish what is in flight, report a last time, end."""


class Trouble(msgspec.Struct, kw_only=True):
    """One kind of error and how often it came up."""

    error: str
    outcome: str
    """`unknown`, `not sent` or `known`."""
    met: int = 0
    """Times a caller met it."""
    failed: int = 0
    """Requests it ended; the others were sent again."""

    @property
    def reason(self) -> str:
        """For people."""
        return f"{self.error} ({self.outcome})"


class Totals(msgspec.Struct, kw_only=True):
    """The accounts of all requests so far."""

    made: int = 0
    answered: int = 0
    answered_after_retry: int = 0
    """Among the answered: those that met an error first and were sent again."""
    wrong: int = 0
    """Among the answered: those whose reply was not the right one."""
    longest_gap_s: float = 0.0
    """Longest time between two answers with an error in between: the outage as callers see it."""
    gap_ended_s: float = 0.0
    """When that gap ended, on the clock of `time.monotonic`."""
    troubles: list[Trouble] = []

    @property
    def met(self) -> int:
        """Errors met, whether the request was sent again or not."""
        return sum(trouble.met for trouble in self.troubles)

    @property
    def failed(self) -> int:
        """Requests that ended with an error."""
        return sum(trouble.failed for trouble in self.troubles)

    @property
    def unknown(self) -> int:
        """Failed requests that the peer may have handled all the same."""
        return sum(it.failed for it in self.troubles if it.outcome == "unknown")

    @property
    def in_flight(self) -> int:
        """Requests that have not ended."""
        return self.made - self.answered - self.failed


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """A node process listens."""

    address: str


class Resting(msgspec.Struct, frozen=True, kw_only=True, tag="resting"):
    """A node process has paid, posted or sent for the last time."""


class Report(msgspec.Struct, frozen=True, kw_only=True, tag="report"):
    """What a calling node did until now; `latencies` alone counts since the last report."""

    at_s: float
    """On the clock of `time.monotonic`, which all processes of a machine share."""
    totals: Totals
    latencies: dict[int, int]
    connections: int
    reconnects: int


class JobReport(msgspec.Struct, frozen=True, tag="job"):
    """How the job of a node stands; `acked` and `replayed` count since its process began."""

    acked: int = 0
    pending: int = 0
    """Segments that Spark works on."""
    replayed: int = 0
    dead: int = 0


class CellsReport(msgspec.Struct, frozen=True, kw_only=True, tag="cells"):
    """What a satellite did until now; `latencies` alone counts since the last report."""

    at_s: float = 0.0
    """On the clock of `time.monotonic`, which all processes of a machine share."""
    cores: list[str] = []
    """Those through which messages may go."""
    is_settled: bool = False
    """Whether all cores know what this satellite offers."""
    handled: int = 0
    copies: int = 0
    published: int = 0
    totals: Totals = msgspec.field(default_factory=Totals)
    latencies: dict[int, int] = {}


class ServicesReport(msgspec.Struct, frozen=True, kw_only=True, tag="services"):
    """What a node of services did until now; `latencies` alone counts since the last report."""

    at_s: float = 0.0
    """On the clock of `time.monotonic`, which all processes of a machine share."""
    nodes: list[str] = []
    """Those whose services it knows, itself among them."""
    priced: int = 0
    """Calls of the action that tells prices, since its process began, as the next two."""
    emitted: int = 0
    heard: int = 0
    streams: int = 0
    stream_bytes: int = 0
    totals: Totals = msgspec.field(default_factory=Totals)
    latencies: dict[int, int] = {}


class MeetingSide(msgspec.Struct, frozen=True, kw_only=True):
    """What one of two nodes that met has to tell."""

    called: int
    answered: int
    """With the right result."""
    emitted: int
    heard: int
    """Events of the other node."""


class MeetingReport(msgspec.Struct, frozen=True, kw_only=True, tag="met"):
    """How a node of Postroad and one of Moleculer got along."""

    ours: MeetingSide
    theirs: MeetingSide
    versions: str
    """Of the other node."""


Told = Ready | Resting | Report | JobReport | CellsReport | ServicesReport | MeetingReport
