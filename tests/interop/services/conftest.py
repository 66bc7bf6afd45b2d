"""Nodes of the original system that tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from postroad.services.serializers import Serializer, make_serializer
from tests.interop.services.pairs import Pair, open_pair
from tests.interop.services.talk import Talk
from tests.support.services.javascript import Peer, installed_packages

SERIALIZERS = ("JSON", "MsgPack", "CBOR")


@pytest.fixture(scope="session")
def modules(pytestconfig: pytest.Config) -> Path:
    cache = pytestconfig.cache
    assert cache is not None
    return installed_packages(cache)


@pytest.fixture(scope="session", params=SERIALIZERS)
def serializer(request: pytest.FixtureRequest) -> Serializer:
    return make_serializer(request.param)


@pytest.fixture(scope="session")
def shared_peer(modules: Path, serializer: Serializer) -> Iterator[Peer]:
    peer = Peer(modules, serializer.name)
    yield peer
    peer.close()


@pytest.fixture
def fresh_talk(modules: Path, serializer: Serializer) -> Iterator[Talk]:
    """With a node that the test may stop."""
    peer = Peer(modules, serializer.name)
    yield Talk(peer, serializer)
    peer.close()


@pytest.fixture
def talk(shared_peer: Peer, serializer: Serializer) -> Talk:
    talk = Talk(shared_peer, serializer)
    talk.introduce()
    shared_peer.sent.clear()
    return talk


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(modules: Path, request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    """Two nodes that know each other; tests of a module share them, and leave them so."""
    async with open_pair(modules, request.param) as pair:
        yield pair
