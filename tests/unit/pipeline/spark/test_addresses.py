"""Where executors are told to find the driver."""

from __future__ import annotations

import socket

import pytest

from postroad.core import Address
from postroad.core.errors import ConfigError
from postroad.pipeline.spark import addresses
from postroad.pipeline.spark.addresses import master_addresses, place_driver, require_master
from postroad.pipeline.spark.config import SparkConfig


def test_addresses_of_masters_are_read_from_their_urls() -> None:
    for url, expected in (
        ("spark://north:7077", [Address("north", 7077)]),
        ("spark://north:7077,[fd00::1]:7078", [Address("north", 7077), Address("fd00::1", 7078)]),
        ("k8s://https://10.0.0.1:6443", [Address("10.0.0.1", 6443)]),
        ("sc://north:15002/;token=secret", [Address("north", 15002)]),
        ("yarn", []),
        ("local[2,4]", []),
    ):
        assert master_addresses(url) == expected, url


def test_driver_of_this_machine_listens_on_loopback_alone() -> None:
    for master in ("local[2,4]", "spark://127.0.0.1:7077", "local-cluster[2,1,512]"):
        assert place_driver(SparkConfig(master=master)).bind == "127.0.0.1:0", master
    assert place_driver(SparkConfig(master="sc://localhost")).bind == "127.0.0.1:0"


def test_driver_of_a_cluster_has_the_address_by_which_it_reaches_the_master(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    towards = {"north": "10.1.2.3", "192.0.2.1": "10.9.9.9", "self": "127.0.0.1"}
    monkeypatch.setattr(addresses, "_address_towards", lambda address: towards[address.host])
    for settings, expected in (
        (SparkConfig(master="spark://north:7077"), ("10.1.2.3:0", "10.1.2.3")),
        (SparkConfig(master="k8s://https://north:443"), ("10.1.2.3:0", "10.1.2.3")),
        (SparkConfig(master="yarn"), ("10.9.9.9:0", "10.9.9.9")),
        # As many systems call themselves.
        (SparkConfig(master="spark://self:7077"), ("10.9.9.9:0", "10.9.9.9")),
        (SparkConfig(master="yarn", bind="0.0.0.0:7000"), ("0.0.0.0:7000", "10.9.9.9")),
        (SparkConfig(master="yarn", bind="10.7.7.7:70"), ("10.7.7.7:70", "")),
        (SparkConfig(master="yarn", bind="10.7.7.7"), ("10.7.7.7:0", "")),
        (SparkConfig(master="local[1]", bind="127.0.0.2"), ("127.0.0.2:0", "")),
        (SparkConfig(bind="0.0.0.0:0"), ("0.0.0.0:0", "127.0.0.1")),
    ):
        placed = place_driver(settings)

        assert (placed.bind, placed.advertise) == expected, settings.master


def test_next_master_is_tried_where_the_first_has_no_address() -> None:
    placed = place_driver(SparkConfig(master="spark://no.such.invalid:7077,127.0.0.2:7077"))

    assert socket.inet_aton(placed.advertise)


def test_master_without_a_way_to_it_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no way to the Spark master .*invalid:7077.*--bind"):
        place_driver(SparkConfig(master="spark://no.such.invalid:7077"))


def test_master_that_nobody_is_at_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        require_master(f"spark://127.0.0.1:{port}")
    with pytest.raises(ConfigError, match=f"no Spark master accepts connections at .*:{port}"):
        require_master(f"spark://127.0.0.1:{port}")
    require_master("yarn")
