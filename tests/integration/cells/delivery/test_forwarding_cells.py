"""Paths of several hops: cells that send on, and the way back."""

from __future__ import annotations

import pytest

from postroad.cells import Cell, CellAddress, CellMessage, CellPath, NoRouteError
from postroad.core.errors import RemoteHandlerError
from tests.support.cells.nodes import Domains, Inbox
from tests.support.deadlines import eventually


class Relay(Cell):
    """Sends on what has further hops to go, and remembers it."""

    def __init__(self, name: str = "relay", *, is_willing: bool = True) -> None:
        super().__init__(name)
        self._is_willing = is_willing
        self.relayed: list[bytes] = []

    def handle(self, message: CellMessage) -> bytes:
        return b"end of the way"

    def should_forward(self, message: CellMessage) -> bool:
        self.relayed.append(message.payload)
        return self._is_willing


@pytest.mark.parametrize(
    "path",
    [
        "relay@C1:target@S2",
        "relay@S1:target@S2",
        "relay@S2:target@S2",
        "relay@S3:target@S2",
        "relay@S3:relay@C1:relay@S1:relay@S2:target@S2",
        "*@C1:target@S2",
        "*@S1:target@S2",
        "*@S3:relay@C2:target@S2",
        "relay@S3:work",
        "*@S2:target",
    ],
)
async def test_forwarded_calls_record_the_whole_path(path: str) -> None:
    async with Domains(2, 3) as domains:
        inbox = Inbox()
        relays = {name: Relay() for name in domains.by_name}
        for name, relay in relays.items():
            await domains[name].add_cell(relay)
        domains["S2"].add_function("target", inbox, consume=["work"])
        await domains.settled()
        for n in range(3):
            payload = b"%d" % n
            assert await domains["S1"].call(path, payload, timeout=3) == payload
        assert inbox.payloads == [b"0", b"1", b"2"]
        visited = [address for address in path.split(":") if address.startswith("relay@")]
        assert [name for name, relay in relays.items() if relay.relayed] == sorted(
            {address.partition("@")[2] for address in visited}
        )
        # A domain on the path is one that sends on as well, unless it sent the message itself.
        senders = [address.replace("*@", "System@") for address in path.split(":")[:-1]]
        cells = [str(hop) for hop in inbox.messages[0].path.hops if not hop.is_domain]
        own = {"*@S1:target@S2": "System@S1", "*@S2:target": "System@S2"}.get(path)
        assert cells == ["System@S1", *(address for address in senders if address != own)]
        assert str(inbox.messages[0].sender) == cells[-1]


async def test_failures_come_back_the_same_way() -> None:
    async with Domains(1, 3) as domains:
        await domains["S3"].add_cell(Relay())

        @domains["S2"].cell("broken")
        def broken(message: CellMessage) -> None:
            raise ValueError("on purpose")

        with pytest.raises(RemoteHandlerError, match="on purpose"):
            await domains["S1"].call("relay@S3:broken@S2", timeout=3)
        with pytest.raises(NoRouteError, match="no cell 'nobody' in domain S2"):
            await domains["S1"].call("relay@S3:nobody@S2", timeout=3, wait=False)
        with pytest.raises(NoRouteError, match="S9"):
            await domains["S1"].call("relay@S3:nobody@S9", timeout=3, wait=False)


async def test_cell_that_does_not_forward_answers_with_a_failure() -> None:
    async with Domains(1, 3) as domains:
        inbox = Inbox()
        relay = Relay(is_willing=False)
        await domains["S3"].add_cell(relay)
        domains["S2"].add_function("target", inbox)
        with pytest.raises(NoRouteError, match="cell relay does not forward messages"):
            await domains["S1"].call("relay@S3:target@S2", b"x", timeout=3, wait=False)
        assert relay.relayed == [b"x"]
        assert not inbox.messages
        assert await domains["S1"].call("relay@S3") == b"end of the way"


async def test_one_way_messages_are_forwarded() -> None:
    async with Domains(1, 3) as domains:
        inbox = Inbox()
        await domains["S3"].add_cell(Relay())
        domains["S2"].add_function("target", inbox)
        await domains["S1"].send("relay@S3:target@S2", b"x")
        await eventually(lambda: inbox.payloads == [b"x"])
        assert inbox.messages[0].sender == CellAddress("relay", "S3")
        assert inbox.messages[0].path.first == CellAddress("System", "S1")


async def test_a_path_back_to_the_caller_is_answered() -> None:
    async with Domains(1, 2) as domains:
        inbox = domains.add("S1", "me", Inbox())
        await domains["S2"].add_cell(Relay())
        path = CellPath.of("relay@S2", "me@S1")
        assert await domains["S1"].call(path, b"round", timeout=3) == b"round"
        assert len(inbox.messages) == 1


async def test_reply_goes_to_the_caller_not_to_the_forwarder() -> None:
    """A relay that is asked something itself meanwhile does not mix the answers up."""
    async with Domains(1, 3) as domains:
        relay = Relay()
        await domains["S3"].add_cell(relay)
        domains["S2"].add_function("target", lambda message: b"for " + message.payload)
        domains["S3"].add_function("other", lambda message: b"other " + message.payload)
        for n in range(20):
            payload = b"%d" % n
            assert await domains["S1"].call("relay@S3:target@S2", payload) == b"for " + payload
            assert await relay.call("target@S2", b"me") == b"for me"
        assert len(domains["S3"]._calls) == 0
