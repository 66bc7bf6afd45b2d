"""A node of the original system for each serializer, shared by all tests here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from postroad.services.serializers import Serializer, make_serializer
from tests.interop.services.javascript import Peer, installed_packages
from tests.interop.services.talk import Talk

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
