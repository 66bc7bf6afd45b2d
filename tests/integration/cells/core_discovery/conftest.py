"""A place in ZooKeeper for each test, and a client that sees what is there."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.cells.zookeeper_registrants import Place, own_place
from tests.support.servers.zookeeper import zookeeper_client


@pytest.fixture
def place() -> Iterator[Place]:
    with own_place() as place:
        yield place


@pytest.fixture
def client(place: Place) -> Iterator[Any]:
    with zookeeper_client(place.server) as client:
        client.ensure_path(place.root)
        yield client
