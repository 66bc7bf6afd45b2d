"""Transporters by name and URL: what is wrong is refused, and secrets are not told."""

import ssl
import sys
from pathlib import Path
from typing import Any

import pytest

from postroad.core.errors import ConfigError, MissingExtraError
from postroad.services.transporters import MemoryTransporter, make_transporter
from postroad.services.transporters.nats import NatsTransporter
from postroad.services.transporters.nats_servers import NatsServer
from postroad.services.transporters.nats_servers import parse_servers as nats_servers
from postroad.services.transporters.redis import RedisTransporter
from postroad.services.transporters.redis_servers import RedisServer
from postroad.services.transporters.redis_servers import parse_server as redis_server
from tests.support.cases import each, naming


@each(
    ("memory", MemoryTransporter),
    ("nats", NatsTransporter),
    ("NATS", NatsTransporter),
    ("nats://10.0.0.1:4222", NatsTransporter),
    ("tls://10.0.0.1", NatsTransporter),
    ("redis", RedisTransporter),
    ("redis://10.0.0.1", RedisTransporter),
    ("Rediss://10.0.0.1/3", RedisTransporter),
)
def test_transporters_are_made_by_name(said: str, kind: type) -> None:
    made = make_transporter(said)
    assert type(made) is kind
    assert not made.is_connected


def test_other_names_and_missing_packages_are_told_without_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for said in ("", "carrier-pigeon", "http://host", "user:secret@host:4222"):
        with (
            naming(said),
            pytest.raises(ConfigError, match=r"there are .*memory, .*nats, .*redis") as caught,
        ):
            make_transporter(said)
        assert "secret" not in str(caught.value), said
    for url in ("nats://me:secret@host", "redis://me:secret@host"):
        assert "secret" not in repr(make_transporter(url))
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(MissingExtraError, match="the extra 'redis'"):
        make_transporter("redis://host")


@each(
    ("nats://host", [NatsServer("host")]),
    ("host:4333", [NatsServer("host", 4333)]),
    ("nats://host:4333/", [NatsServer("host", 4333)]),
    ("tls://host", [NatsServer("host", is_encrypted=True)]),
    ("nats://[::1]:4333", [NatsServer("::1", 4333)]),
    ("nats://me:p%40ss@host", [NatsServer("host", user="me", password="p@ss")]),
    ("nats://t%2Cken@host", [NatsServer("host", token="t,ken")]),
    ("nats://one,two:4333", [NatsServer("one"), NatsServer("two", 4333)]),
    (
        "nats://me:pass@one, tls://two:4333",
        [
            NatsServer("one", user="me", password="pass"),
            NatsServer("two", 4333, is_encrypted=True, user="me", password="pass"),
        ],
    ),
    (
        "nats://token@one,nats://me:pass@two",
        [NatsServer("one", token="token"), NatsServer("two", user="me", password="pass")],
    ),
)
def test_urls_of_nats(url: str, expected: list[NatsServer]) -> None:
    assert nats_servers(url) == expected


@each(
    "",
    "nats://",
    "http://host:secret",
    "http://me:secret@host",
    "nats://me:secret@host:port",
    "nats://me:secret@host:0",
    "nats://me:secret@host:70000",
    "nats://me:secret@host/path",
    "nats://me:secret@host?tls=secret",
    "nats://me:secret@host#secret",
    "nats://me:secret@host,",
    "nats://me:secret@[::1",
    "nats://:secret@host",
)
def test_wrong_urls_of_nats(url: str) -> None:
    with pytest.raises(ConfigError, match="NATS") as caught:
        NatsTransporter(url)
    assert "secret" not in str(caught.value)


def test_arguments_of_nats_override_the_url() -> None:
    assert nats_servers("me:pass@one,two", user="you", password="word") == [
        NatsServer("one", user="you", password="word"),
        NatsServer("two", user="you", password="word"),
    ]
    assert nats_servers("me:pass@one", token="token") == [NatsServer("one", token="token")]
    assert NatsServer("host").credentials() == {}
    assert NatsServer("host", token="t").credentials() == {"auth_token": "t"}
    assert NatsServer("host", user="u", password="").credentials() == {"user": "u", "pass": ""}
    assert not NatsTransporter(tls=ssl.create_default_context()).is_connected
    half: list[dict[str, Any]] = [
        {"user": "me"},
        {"password": "secret"},
        {"user": "me", "password": "secret", "token": "secret"},
    ]
    for arguments in half:
        with naming(arguments), pytest.raises(ConfigError, match="is given a") as caught:
            NatsTransporter(**arguments)
        assert "secret" not in str(caught.value), arguments


@each(
    (NatsServer("host", 1, user="me", password="secret"), "host:1"),
    (NatsServer("::1", 1, token="secret"), "[::1]:1"),
    (RedisServer("host", 1, user="me", password="secret"), "host:1"),
    (RedisServer("::1", 1, password="secret"), "[::1]:1"),
)
def test_secrets_are_not_shown(server: NatsServer | RedisServer, text: str) -> None:
    assert str(server) == text
    assert "secret" not in repr(server)


@each(
    ("redis://host", RedisServer("host")),
    ("redis://host:1/", RedisServer("host", 1)),
    ("redis://host/5", RedisServer("host", database=5)),
    ("rediss://host", RedisServer("host", is_encrypted=True)),
    ("redis://[::1]:1", RedisServer("::1", 1)),
    ("redis://:p%40ss@host", RedisServer("host", password="p@ss")),
    ("redis://me:pass@host", RedisServer("host", user="me", password="pass")),
)
def test_urls_of_redis(url: str, expected: RedisServer) -> None:
    assert redis_server(url) == expected


@each(
    "",
    "host:6379",
    "redis://",
    "http://me:secret@host",
    "redis://me:secret@host:port",
    "redis://me:secret@host:0",
    "redis://me:secret@host/first",
    "redis://me:secret@host/-1",
    "redis://me:secret@host?ssl_cert_reqs=none",
    "redis://me:secret@host#secret",
    "redis://me:secret@one,two",
    "redis://me:secret@[::1",
)
def test_wrong_urls_of_redis(url: str) -> None:
    with pytest.raises(ConfigError, match="Redis") as caught:
        RedisTransporter(url)
    assert "secret" not in str(caught.value)


def test_options_of_redis_are_checked(tmp_path: Path) -> None:
    said = redis_server("redis://me:pass@host", user="you", password="word")
    assert said == RedisServer("host", user="you", password="word")
    nonsense = tmp_path / "ca.pem"
    nonsense.write_text("nonsense")
    wrong: list[dict[str, Any]] = [
        {"packet_bytes_max": 0},
        {"tls_cert": "cert.pem"},
        {"tls_key": "key.pem"},
        {"tls_ca": str(nonsense)},
        {"tls_ca": str(tmp_path / "nothing.pem")},
    ]
    for options in wrong:
        with pytest.raises(ConfigError, match=next(iter(options))):
            RedisTransporter("rediss://host", **options)
