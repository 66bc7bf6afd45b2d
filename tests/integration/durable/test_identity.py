"""Who a message is from, as certificates prove it, and to whom mail is given at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroad.core.errors import RemoteDecodeError
from postroad.durable.bridges.protocol import encode
from postroad.durable.names import DELIVER
from postroad.net import MessagingService
from tests.support.deadlines import eventually
from tests.support.durable.mail_pairs import (
    CLUSTER,
    LIMITS,
    Recorder,
    Station,
    running_station,
    until_empty,
)
from tests.support.durable.nodes import QUEUE, Correspondent, make_letters
from tests.support.net.tls import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "one")


async def trouble_with(alpha: Station, peer: str) -> str:
    """What the bridge of a node complains about, as soon as it does."""
    errors: list[str] = []

    async def complains() -> bool:
        errors[:] = [
            bridge.last_error
            for bridge in (await alpha.mail.bridges.status()).bridges
            if bridge.peer == peer and bridge.last_error
        ]
        return bool(errors)

    await eventually(complains, f"the bridge to {peer} is in trouble")
    return errors[0]


async def test_sender_is_taken_from_certificate(tmp_path: Path, authority: Authority) -> None:
    async with (
        running_station("beta", tmp_path, tls=authority.tls("beta")) as beta,
        running_station("alpha", tmp_path, beta, tls=authority.tls("alpha")) as alpha,
    ):
        recorder = await Recorder.at(beta)
        await alpha.mail.send("orders", b"tea", to="beta")
        await recorder.until(1)
        assert recorder.messages[0].sender == "alpha"


async def test_node_cannot_deliver_in_anothers_name(tmp_path: Path, authority: Authority) -> None:
    """B11: a node that calls itself alpha, and has the certificate of mallory."""
    async with (
        running_station("beta", tmp_path, tls=authority.tls("beta")) as beta,
        running_station("alpha", tmp_path, beta, tls=authority.tls("mallory")) as false,
    ):
        await false.mail.send("orders", b"forged", to="beta")
        await trouble_with(false, "beta")
        assert await beta.mail.admin.peek("orders") == []


@pytest.mark.parametrize("name", ["alpha", "alpha.bridge", "mallory", "mallory.bridge"])
async def test_stream_belongs_to_the_node_behind_the_certificate(
    tmp_path: Path, authority: Authority, name: str
) -> None:
    """Whatever store a window claims to be of; the bridge process of a node speaks for it alone."""
    async with (
        running_station("beta", tmp_path, tls=authority.tls("beta")) as beta,
        MessagingService(CLUSTER, name, tls=authority.tls(name), limits=LIMITS) as service,
    ):
        window = Correspondent([make_letters(3)], to="beta").window()
        await service.request(beta.address, DELIVER, encode(window), peer="beta")
        recorder = await Recorder.at(beta, QUEUE)
        await recorder.until(3)
        assert {message.sender for message in recorder.messages} == {name.removesuffix(".bridge")}
        with pytest.raises(RemoteDecodeError):
            await service.request(beta.address, DELIVER, b"nonsense", peer="beta")


async def test_message_is_not_delivered_to_wrong_peer_at_address(
    tmp_path: Path, authority: Authority
) -> None:
    """B11: the name that the certificate proves must be the peer's; the mail stays until then."""
    async with (
        running_station("beta", tmp_path, tls=authority.tls("beta")) as beta,
        running_station("mallory", tmp_path, tls=authority.tls("mallory")) as mallory,
        running_station("alpha", tmp_path, tls=authority.tls("alpha")) as alpha,
    ):
        await alpha.mail.send("orders", b"secret", to="beta")
        alpha.directory.set("beta", mallory.address)
        assert "mallory" in await trouble_with(alpha, "beta")
        assert await mallory.mail.admin.peek("orders") == []
        alpha.meet(beta)
        await until_empty(alpha.mail, "beta")
        assert [message.body for message in await beta.mail.admin.peek("orders")] == [b"secret"]


async def test_message_is_not_delivered_to_peer_of_other_ca(
    tmp_path: Path, authority: Authority
) -> None:
    """B11: a certificate that nobody here trusts."""
    stranger = Authority(tmp_path / "two")
    async with (
        running_station("beta", tmp_path, tls=stranger.tls("beta")) as beta,
        running_station("alpha", tmp_path, beta, tls=authority.tls("alpha")) as alpha,
    ):
        await alpha.mail.send("orders", b"secret", to="beta")
        await trouble_with(alpha, "beta")
        assert await beta.mail.admin.peek("orders") == []
        assert [message.body for message in await alpha.mail.bridges.peek("beta")] == [b"secret"]
