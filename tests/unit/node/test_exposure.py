"""What a node says at its start about who can do what to it."""

import logging
from typing import Any

import msgspec

from postroad.node import NodeConfig
from postroad.node.exposure import describe_exposure
from tests.support.cases import each

TLS = {"certificate": "a.pem", "key": "a.key", "ca": "ca.pem"}
OUTSIDE = {"bind": "0.0.0.0:26502", "cluster": "shop"}


def config_of(**sections: Any) -> NodeConfig:
    return msgspec.convert(sections, NodeConfig)


@each(
    ({}, None, "off"),
    ({"node": OUTSIDE}, None, "off"),
    ({"tls": TLS, "node": OUTSIDE}, None, "read"),
    ({"tls": {**TLS, "mutual": False}}, None, "off"),
    ({"node": {**OUTSIDE, "secret": "x" * 32}}, None, "read"),
    ({"node": {"secret_file": "secret.txt"}}, None, "read"),
    ({"node": OUTSIDE}, "read", "read"),
    ({"node": OUTSIDE}, "change", "change"),
    ({"tls": TLS}, "off", "off"),
)
def test_operators_of_other_nodes_are_let_in_by_default_in_a_closed_cluster_only(
    sections: dict[str, Any], remote: str | None, expected: str
) -> None:
    config = config_of(**sections, admin={} if remote is None else {"remote": remote})
    assert config.admin_remote == expected


def test_exposure_of_an_open_node_on_a_network_is_a_warning_that_names_who_can_join() -> None:
    exposure = describe_exposure(config_of(node=OUTSIDE, admin={"bind": "0.0.0.0:8222"}))
    assert exposure.level == logging.WARNING
    assert "everybody who reaches 0.0.0.0:26502 can join cluster 'shop'" in exposure.text
    assert "operators of other members may do nothing here (admin.remote)" in exposure.text
    assert "everybody who reaches 0.0.0.0:8222 can ask its HTTP API with a token" in exposure.text
    assert "sent in the clear" in exposure.text


def test_exposure_of_a_node_on_loopback_tells_of_other_programs_of_the_machine() -> None:
    exposure = describe_exposure(config_of())
    assert exposure.level == logging.INFO
    assert "every program of this machine can join cluster 'postroad'" in exposure.text
    assert "every program of this machine can ask its HTTP API with a token" in exposure.text
    assert "sent in the clear" not in exposure.text


def test_exposure_of_a_closed_cluster_tells_what_opens_it() -> None:
    exposure = describe_exposure(config_of(node=OUTSIDE, tls=TLS, admin={"enabled": False}))
    assert exposure.level == logging.INFO
    assert exposure.text == "only nodes with a certificate of tls.ca are heard"
    secret = {**OUTSIDE, "secret": "x" * 32}
    for tls in (None, {**TLS, "mutual": False}):
        exposure = describe_exposure(config_of(node=secret, tls=tls))
        assert exposure.level == logging.INFO, tls
        assert exposure.text.startswith("only nodes with the secret of the cluster are heard"), tls
        assert "operators of other members may look at this node" in exposure.text, tls
        assert "xxx" not in exposure.text, tls
    one_sided = describe_exposure(config_of(node=OUTSIDE, tls={**TLS, "mutual": False}))
    assert one_sided.level == logging.WARNING
    assert "everybody who reaches 0.0.0.0:26502 can join" in one_sided.text
