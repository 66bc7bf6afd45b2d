"""Locations of cores, as far as nothing has to run."""

import sys

import pytest

from postroad.cells.core_discovery import CoreLocation, ZooKeeperCoreDiscovery
from postroad.core import Address
from postroad.core.errors import ConfigError, MissingExtraError

PLACE = Address("10.0.0.1", 26502)


def test_a_location_reads_as_its_endpoints() -> None:
    location = CoreLocation("C1", (PLACE, Address("::1", 26502)), "A")
    assert str(location) == "10.0.0.1:26502, [::1]:26502"
    assert location == CoreLocation("C1", location.endpoints, "A")

    for count in [1, 16]:
        assert len(CoreLocation("C1", (PLACE,) * count).endpoints) == count, count

    locations = ZooKeeperCoreDiscovery("127.0.0.1:2181", "a/b", "/r", auth=[("digest", "u:secret")])
    assert repr(locations) == (
        "<ZooKeeperCoreDiscovery ZooKeeper 127.0.0.1:2181 /r/a%2Fb/cores [not started]>"
    )


def test_impossible_core_location_is_refused(subtests: pytest.Subtests) -> None:
    for name, endpoints, zone, complaint in [
        ("", (PLACE,), None, "must not be empty"),
        ("local", (PLACE,), None, "reserved"),
        ("a@b", (PLACE,), None, "contains '@'"),
        ("C1", (), None, "0 endpoints; it must have 1 to 16"),
        ("C1", (PLACE,) * 17, None, "17 endpoints"),
        ("C1", (PLACE, Address("10.0.0.1", 0)), None, "port"),
        ("C1", (PLACE,), "", "zone: "),
        ("C1", (PLACE,), "a b", "zone: "),
    ]:
        with subtests.test(name=name), pytest.raises(ConfigError, match=complaint):
            CoreLocation(name, endpoints, zone)


def test_zookeeper_without_the_extra_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "postroad.cluster.discovery.zookeeper_session", raising=False)
    monkeypatch.setitem(sys.modules, "kazoo", None)
    with pytest.raises(MissingExtraError, match=r"core discovery .* the extra 'zookeeper'"):
        ZooKeeperCoreDiscovery("127.0.0.1:2181", "demo")
