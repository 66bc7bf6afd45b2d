"""Links have a fixed set of attributes: they are many, and every message touches them."""

import asyncio
from itertools import count

import pytest

from postroad.net.accepted import AcceptedLink
from postroad.net.context import LinkContext
from postroad.net.dialed import DialedLink
from postroad.net.dispatch import Subscriptions
from postroad.net.link import LargeFrameReader, Link
from postroad.net.tunnel import Tunnel
from postroad.wire import Role
from tests.support.wire.pairs import SERVER_ADDRESS, make_config


def make_link(kind: type[Link]) -> Link:
    """A link that is not connected; needs a running loop."""
    context, loop = LinkContext(make_config(), count(1).__next__), asyncio.get_running_loop()
    if kind is Tunnel:
        tunnels: dict[Tunnel, None] = {}
        return Tunnel(context, loop, Role.CLIENT, None, tunnels.pop)
    if kind is DialedLink:
        return DialedLink(context, loop, SERVER_ADDRESS)
    return AcceptedLink(context, loop, Subscriptions(), {})


async def test_links_have_no_dictionary(subtests: pytest.Subtests) -> None:
    for kind in [DialedLink, AcceptedLink, Tunnel]:
        with subtests.test(kind=kind):
            link = make_link(kind)
            assert type(link) is kind
            assert not hasattr(link, "__dict__")
            with pytest.raises(AttributeError):
                link.surprise = 1  # type: ignore[attr-defined]

    assert not hasattr(LargeFrameReader(make_link(DialedLink)), "__dict__")

    # One base without them would give every instance a dictionary again.
    for kind in [DialedLink, AcceptedLink, LargeFrameReader, Tunnel]:
        assert [
            base.__name__ for base in kind.__mro__[:-1] if "__slots__" not in vars(base)
        ] == [], kind
