"""The tree of settings: its defaults, and what it refuses."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from postroad.core.errors import ConfigError
from postroad.node.settings import (
    AdminSettings,
    ClusterSettings,
    Layer,
    NodeConfig,
    NodeSettings,
    default_name,
)
from tests.support.cases import each


def test_defaults_need_nobody_and_the_store_can_be_elsewhere() -> None:
    config = NodeConfig()
    assert config.node.name == default_name()
    assert all(config.has(layer) for layer in Layer)
    assert not config.cluster.seeds
    assert config.tls is None
    assert config.store == f".postroad/{config.node.name}.db"
    assert str(config.admin_address) == "127.0.0.1:8222"
    config = msgspec.convert({"queues": {"store": "memory"}}, NodeConfig)
    assert config.store == "memory"


@each(
    (NodeSettings, {"name": "a b"}, "node name 'a b' contains ' '"),
    (NodeSettings, {"bind": "nowhere"}, "is not of the form host:port"),
    (NodeSettings, {"advertise": "host:99999"}, "the port must be 0 to 65535"),
    (NodeSettings, {"layers": (Layer.FLOWS,)}, "'flows' needs 'queues', which is not listed"),
    (NodeSettings, {"layers": (Layer.CELLS,)}, "'cells' needs 'cluster'"),
    (NodeSettings, {"secret": "short"}, "secret is shorter than 16 characters"),
    (NodeSettings, {"secret": "x" * 16, "secret_file": "f"}, "secret and secret_file: give one"),
    (ClusterSettings, {"seeds": ("a:1",), "dns": "b:2"}, "seeds and dns: give one way"),
    (ClusterSettings, {"seeds": ("a",)}, "is not of the form host:port"),
    (AdminSettings, {"certificate": "c.pem"}, "certificate and key: give both or neither"),
    (AdminSettings, {"client_trust": "ca.pem"}, "client_trust needs HTTPS"),
    (AdminSettings, {"token": "short"}, "token is shorter than 16 characters"),
    (AdminSettings, {"body_bytes_max": 0}, "body_bytes_max=0 must be a finite number above 0"),
)
def test_refuses(kind: type, settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        kind(**settings)


def test_secret_of_a_file_with_lines_is_all_of_them(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    settings = NodeSettings(secret_file=str(path))
    with pytest.raises(ConfigError, match=r"secret_file: .* cannot be read: No such file"):
        settings.read_secrets()
    path.write_bytes(b"\xff" * 20)
    with pytest.raises(ConfigError, match="it is not UTF-8"):
        settings.read_secrets()
    path.write_text("hush\n")
    with pytest.raises(ConfigError, match="shorter than 16") as caught:
        settings.read_secrets()
    assert "hush" not in str(caught.value)
    path.write_text("\n")
    with pytest.raises(ConfigError, match="0 given"):
        settings.read_secrets()
    path.write_text("a new secret of some length\n\n the old one of some length \n")
    secrets = ("a new secret of some length", "the old one of some length")
    assert settings.read_secrets() == secrets
    assert NodeSettings(secret=secrets[0]).read_secrets() == secrets[:1]
    assert NodeSettings().read_secrets() == ()


@each(
    ({}, False),
    ({"node": {"secret": "x" * 16}}, True),
    ({"node": {"secret_file": "secret"}}, True),
    ({"tls": {"certificate": "c", "key": "k", "ca": "t"}}, True),
    ({"tls": {"certificate": "c", "key": "k", "ca": "t", "mutual": False}}, False),
)
def test_node_is_closed_with_a_secret_or_mutual_tls(
    settings: dict[str, Any], is_closed: bool
) -> None:
    assert msgspec.convert(settings, NodeConfig).is_closed is is_closed


def test_unknown_settings_are_refused_and_secrets_not_told() -> None:
    with pytest.raises(ConfigError) as caught:
        AdminSettings(token="hush")
    assert "hush" not in str(caught.value)
    wrong: list[dict[str, Any]] = [
        {"nodes": {}},
        {"node": {"called": "a"}},
        {"queues": {"stores": "x"}},
    ]
    for said in wrong:
        with pytest.raises(msgspec.ValidationError, match="unknown field"):
            msgspec.convert(said, NodeConfig)
