"""The transporters for MQTT and AMQP refuse what is wrong, and do not tell secrets."""

import ssl
import sys
from typing import Any

import pytest

from postroad.core.errors import ConfigError, MissingExtraError
from postroad.services.kinds import Kind
from postroad.services.topics import Topics
from postroad.services.transporters import make_transporter
from postroad.services.transporters.amqp import AmqpTransporter
from postroad.services.transporters.mqtt import MqttTransporter
from postroad.services.transporters.server_address import Scheme, ServerAddress, parse_address
from tests.support.cases import each, naming
from tests.support.services.transporter_nodes import Recorder

SCHEMES = {"post": Scheme(10, False), "posts": Scheme(11, True)}

Kinds = type[MqttTransporter] | type[AmqpTransporter]


@each(
    ("post://host", ServerAddress("host", 10)),
    ("POSTS://host", ServerAddress("host", 11, True)),
    ("post://host:1/", ServerAddress("host", 1)),
    ("post://[::1]:1", ServerAddress("::1", 1)),
    ("post://me@host", ServerAddress("host", 10, user="me")),
    ("post://me:p%40ss@host/%2Fa/b", ServerAddress("host", 10, False, "me", "p@ss", "/a/b")),
)
def test_addresses(url: str, expected: ServerAddress) -> None:
    assert parse_address(url, SCHEMES) == expected


def test_address_takes_arguments_and_hides_secrets() -> None:
    address = parse_address("post://me:secret@host", SCHEMES, user="you", password="word")
    assert (address.user, address.password) == ("you", "word")
    assert parse_address("post://me:secret@host", SCHEMES, user="you").password is None
    address = parse_address("post://me:secret@host/path", SCHEMES)
    assert str(address) == "host:10"
    assert "secret" not in repr(address)
    assert str(parse_address("post://[::1]", SCHEMES)) == "[::1]:10"


@each(
    "",
    "host",
    "post://",
    "http://me:secret@host",
    "post://me:secret@host:port",
    "post://me:secret@host:0",
    "post://me:secret@host:70000",
    "post://me:secret@host?more=secret",
    "post://me:secret@host#secret",
    "post://me:secret@[::1",
    "post://:secret@host",
)
def test_wrong_addresses(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_address(url, SCHEMES)
    assert "secret" not in str(caught.value)


@each(
    ("mqtt", MqttTransporter),
    ("mqtt://host", MqttTransporter),
    ("Mqtts://me:secret@host:1", MqttTransporter),
    ("amqp", AmqpTransporter),
    ("amqp://me:secret@one;amqp://two/vhost", AmqpTransporter),
    ("amqps://host", AmqpTransporter),
)
def test_transporters_are_made_by_name(said: str, kind: Kinds) -> None:
    made = make_transporter(said)
    assert type(made) is kind
    assert not made.is_connected
    assert "secret" not in repr(made)


@each(
    (MqttTransporter, {"url": "amqp://me:secret@host"}, "mqtt://"),
    (MqttTransporter, {"url": "mqtt://me:secret@host/path"}, "port"),
    (MqttTransporter, {"qos": 3}, "qos"),
    (MqttTransporter, {"keep_alive_s": 0}, "keep_alive_s"),
    (MqttTransporter, {"keep_alive_s": 65_536}, "keep_alive_s"),
    (MqttTransporter, {"topic_separator": "#"}, "MQTT"),
    (MqttTransporter, {"tls": ssl.create_default_context()}, "mqtts://"),
    (AmqpTransporter, {"url": "mqtt://me:secret@host"}, "amqp://"),
    (AmqpTransporter, {"url": "amqp://host;amqp://me:secret@host:0"}, "amqp://"),
    (AmqpTransporter, {"url": " ; "}, "empty"),
    (AmqpTransporter, {"prefetch": 0}, "prefetch"),
    (AmqpTransporter, {"prefetch": 65_536}, "prefetch"),
    (AmqpTransporter, {"heartbeat_s": 0}, "heartbeat_s"),
    (AmqpTransporter, {"queue_expires_s": 0}, "expires_s"),
    (AmqpTransporter, {"password": "secret"}, "no user"),
    (AmqpTransporter, {"tls": ssl.create_default_context()}, "amqps://"),
)
def test_wrong_options(kind: Kinds, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        kind(**options)
    assert "secret" not in str(caught.value)


@each(("mqtt", "paho.mqtt.client", "mqtt"), ("amqp", "aiormq", "amqp"))
def test_without_the_extra(
    said: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError) as caught:
        make_transporter(said)
    assert caught.value.extra == extra


def test_names_that_a_server_does_not_take_are_refused() -> None:
    for node_id in ("a+b", "#"):
        with naming(node_id), pytest.raises(ConfigError, match="many topics"):
            MqttTransporter().bind(Topics(node_id), Recorder())
        transporter = MqttTransporter()
        transporter.bind(Topics("alpha"), Recorder())
        with naming(node_id), pytest.raises(ConfigError, match="many topics"):
            transporter.publish(Kind.REQUEST, node_id, b"")
    with pytest.raises(ConfigError, match="longer than AMQP takes"):
        AmqpTransporter().bind(Topics("x" * 250), Recorder())
    amqp = AmqpTransporter()
    amqp.bind(Topics("alpha"), Recorder())
    with pytest.raises(ConfigError, match="longer than AMQP takes"):
        amqp.publish(Kind.REQUEST, "x" * 250, b"")
    with pytest.raises(ConfigError, match="longer than AMQP takes"):
        amqp.publish_balanced(f"MOL.REQB.{'x' * 250}", Kind.REQUEST, b"")
    transporter = MqttTransporter(topic_separator="/")
    transporter.bind(Topics("alpha", "dev"), Recorder())
    assert transporter.topics.name_of(Kind.REQUEST, "beta") == "MOL-dev/REQ/beta"
    assert transporter.topics.node_id == "alpha"
