"""Links have a fixed set of attributes: they are many, and every message touches them."""

import asyncio
from itertools import count

import pytest

from postroad.net.connections.client import ClientConnection
from postroad.net.connections.connection import PeerConnection
from postroad.net.connections.disconnect import LargeFrameProtocol
from postroad.net.connections.server import ServerConnection
from postroad.net.connections.tunnel import Tunnel
from postroad.net.context import ConnectionContext
from postroad.net.dispatch import SubscriptionTable
from postroad.wire import ConnectionRole
from tests.support.wire.pairs import SERVER_ADDRESS, make_config


def make_link(kind: type[PeerConnection]) -> PeerConnection:
    """A link that is not connected; needs a running loop."""
    context, loop = ConnectionContext(make_config(), count(1).__next__), asyncio.get_running_loop()
    if kind is Tunnel:
        tunnels: dict[Tunnel, None] = {}
        return Tunnel(context, loop, ConnectionRole.CLIENT, None, tunnels.pop)
    if kind is ClientConnection:
        return ClientConnection(context, loop, SERVER_ADDRESS)
    return ServerConnection(context, loop, SubscriptionTable(), {})


async def test_connections_have_no_dict(subtests: pytest.Subtests) -> None:
    for kind in [ClientConnection, ServerConnection, Tunnel]:
        with subtests.test(kind=kind):
            link = make_link(kind)
            assert type(link) is kind
            assert not hasattr(link, "__dict__")
            with pytest.raises(AttributeError):
                link.surprise = 1  # type: ignore[attr-defined]

    assert not hasattr(LargeFrameProtocol(make_link(ClientConnection)), "__dict__")

    # One base without them would give every instance a dictionary again.
    for kind in [ClientConnection, ServerConnection, LargeFrameProtocol, Tunnel]:
        assert [
            base.__name__ for base in kind.__mro__[:-1] if "__slots__" not in vars(base)
        ] == [], kind
