"""The configuration of a node: from a file, the environment and flags."""

import os
import tomllib
from pathlib import Path

import pytest

from postroad.cells import Role
from postroad.core.errors import ConfigError
from postroad.node.keys import HIDDEN, settings_keys
from postroad.node.reading import (
    RESERVED_VARIABLES,
    Loaded,
    format_value,
    is_reserved,
    load_config,
    nearest,
)
from postroad.node.settings import Layer, NodeConfig
from tests.support.cases import each

TOKEN = "correct-horse-battery"


_TLS = "[tls]\ncertificate = 'c'\nkey = 'k'\n"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "postroad.toml"


def read(file: Path, text: str, **environ: str) -> Loaded:
    file.write_text(text)
    return load_config(environ=environ)


def mistake(file: Path, text: str = "", flags: dict[str, str] | None = None, **env: str) -> str:
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(environ=env, flags=flags)
    return str(caught.value)


def test_file_environment_and_flags_in_that_order(file: Path) -> None:
    file.write_text('[node]\nname = "a"\ncluster = "a"\nbind = "127.0.0.1:1"\n')
    environ = {"POSTROAD_NODE_NAME": "b", "POSTROAD_NODE_CLUSTER": "b"}
    loaded = load_config(environ=environ, flags={"node.name": "c"})
    node = loaded.config.node
    assert (node.name, node.cluster, node.bind) == ("c", "b", "127.0.0.1:1")
    assert loaded.origins["node.name"] == "--set node.name"
    assert loaded.origins["node.cluster"] == "POSTROAD_NODE_CLUSTER"
    assert loaded.origins["node.bind"] == "postroad.toml:4"
    assert loaded.origins["node.data"] == "default"
    other = file.with_name("other.toml")
    other.write_text('node.name = "other"')
    file.write_text('node.name = "first"')
    assert load_config(other, {}).config.node.name == "other"
    assert load_config(environ={"POSTROAD_CONFIG": str(other)}).path == other
    assert load_config(environ={}).config.node.name == "first"


def test_origin_of_a_flag_is_told_as_written(file: Path) -> None:
    loaded = load_config(environ={}, flags={"node.name": "c"}, flag_names={"node.name": "--name"})
    assert loaded.origins["node.name"] == "--name"
    loaded = load_config(environ={})
    assert loaded.config == NodeConfig()
    assert loaded.path is None
    assert set(loaded.origins) == set(settings_keys())
    assert set(loaded.origins.values()) == {"default"}


def test_tables_within_tables(file: Path) -> None:
    loaded = read(
        file,
        """
        cluster.properties = { rack = "7" }
        [cells]
        role = "satellite"
        [cells.tuning.route_learner]
        default_delay_s = 1
        [queues.tuning]
        handler_timeout_s = 2.5
        """,
    )
    config = loaded.config
    assert config.cluster.properties == {"rack": "7"}
    assert config.cells.role is Role.SATELLITE
    assert config.cells.tuning.route_learner.default_delay_s == 1.0
    assert config.queues.tuning.handler_timeout_s == 2.5
    assert config.queues.tuning.ack_timeout_s == NodeConfig().queues.tuning.ack_timeout_s
    assert loaded.origins["cluster.properties"] == "postroad.toml:2"
    assert loaded.origins["queues.tuning.handler_timeout_s"] == "postroad.toml:8"


@each(
    ("POSTROAD_NODE_NAME", "b", "node.name", "b"),
    ("POSTROAD_QUEUES_TUNING_HANDLER_TIMEOUT_S", "2.5", "queues.tuning.handler_timeout_s", 2.5),
    ("POSTROAD_LIMITS_ACCEPTED_CONNECTIONS_MAX", "7", "limits.accepted_connections_max", 7),
    ("POSTROAD_ADMIN_ENABLED", "no", "admin.enabled", False),
    ("POSTROAD_SERVICES_TUNING_RETRY_IS_ENABLED", "On", "services.tuning.retry.is_enabled", 1),
    ("POSTROAD_CLUSTER_SEEDS", "a:1, b:2", "cluster.seeds", ("a:1", "b:2")),
    ("POSTROAD_CLUSTER_SEEDS", '["a:1"]', "cluster.seeds", ("a:1",)),
    ("POSTROAD_CLUSTER_SEEDS", "", "cluster.seeds", ()),
    ("POSTROAD_NODE_LAYERS", "cluster,queues", "node.layers", (Layer.CLUSTER, Layer.QUEUES)),
    ("POSTROAD_CLUSTER_PROPERTIES", '{"rack": "7"}', "cluster.properties", {"rack": "7"}),
    ("POSTROAD_ADMIN_REMOTE", "off", "admin.remote", "off"),
    ("POSTROAD_CELLS_ROLE", "core", "cells.role", Role.CORE),
    ("POSTROAD_QUEUES_STORE", "", "queues.store", None),
)
def test_variables_are_read_by_the_type_of_the_setting(
    variable: str, text: str, name: str, value: object, file: Path
) -> None:
    loaded = load_config(environ={variable: text})
    assert loaded.value(name) == value
    assert loaded.origins[name] == variable


@each(
    ("[mail]\nstore = 'memory'", "queues.store", "memory", "mail.store"),
    (
        "limits.lanes_per_peer_max = 3",
        "limits.connections_per_peer_max",
        3,
        "limits.lanes_per_peer_max",
    ),
    (f"{_TLS}trust = 'ca'", "tls.ca", "ca", "tls.trust"),
    ("cluster.contacts = ['a:1']", "cluster.seeds", ("a:1",), "cluster.contacts"),
    (
        "[cluster.tuning]\ntombstone_s = 5",
        "cluster.tuning.tombstone_ttl_s",
        5.0,
        "cluster.tuning.tombstone_s",
    ),
    ("limits.accepted_max = 9", "limits.accepted_connections_max", 9, "limits.accepted_max"),
    (
        "[cells.tuning.learning]\ndefault_delay_s = 3",
        "cells.tuning.route_learner.default_delay_s",
        3.0,
        "cells.tuning.learning.default_delay_s",
    ),
    (f"{_TLS}ca = 'ca'\nis_mutual = false", "tls.mutual", False, "tls.is_mutual"),
    (
        "[mail.tuning]\nhandler_s = 2",
        "queues.tuning.handler_timeout_s",
        2.0,
        "mail.tuning.handler_s",
    ),
    ("flows.tuning.keep_s = 9", "flows.tuning.retention_s", 9.0, "flows.tuning.keep_s"),
    ("queues.tuning.lease_s = 3", "queues.tuning.ack_timeout_s", 3.0, "queues.tuning.lease_s"),
    ("node.layers = ['cluster', 'mail']", "node.layers", (Layer.CLUSTER, Layer.QUEUES), None),
)
def test_former_names_are_read_with_a_warning(
    text: str,
    name: str,
    value: object,
    former: str | None,
    file: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.clear()
    assert read(file, text).value(name) == value
    expected = f"{former} is called {name} now; its former name is deprecated"
    assert (expected in caplog.text) == (former is not None)


def test_former_names_of_variables_and_flags_are_read_with_a_warning(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    variable = {"POSTROAD_MAIL_TUNING_HANDLER_S": "5"}
    loaded = load_config(environ=variable, flags={"mail.bridge": "no"})
    assert loaded.config.queues.tuning.handler_timeout_s == 5.0
    assert loaded.config.queues.bridge is False
    assert "is called POSTROAD_QUEUES_TUNING_HANDLER_TIMEOUT_S now" in caplog.text
    assert "mail.bridge is called queues.bridge now" in caplog.text


def test_every_default_can_be_written_down_and_read_again(file: Path) -> None:
    written = [
        (key, f"{key.name} = {text}")
        for key in settings_keys().values()
        if (text := format_value(key, key.default)) and key.section != "tls"
    ]
    loaded = read(file, "\n".join(line for _, line in written))
    assert loaded.config == NodeConfig()
    for number, (key, _) in enumerate(written, 1):
        assert loaded.value(key.name) == key.default
        assert loaded.origins[key.name] == f"postroad.toml:{number}"


def test_certificates_are_whole_or_a_mistake(file: Path) -> None:
    text = '[tls]\ncertificate = "a.pem"\nkey = "a.key"\ntrust = "ca.pem"\nis_mutual = false\n'
    tls = read(file, text).config.tls
    assert tls is not None
    assert (tls.certificate, tls.key, tls.ca, tls.mutual) == (
        *("a.pem", "a.key", "ca.pem"),
        False,
    )
    assert mistake(file, '[tls]\ncertificate = "a.pem"\nkey = "a.key"\n') == (
        "tls.ca is missing; tls needs it"
    )


def test_variables_of_others_and_of_kubernetes_are_left_alone(file: Path) -> None:
    for variable in [it.replace("*", "ANY") for it in RESERVED_VARIABLES]:
        environ = {variable: str(file)}
        file.write_text("")
        assert load_config(environ=environ).config == NodeConfig(), variable
    environ = {
        "POSTROAD_SERVICE_HOST": "10.0.0.1",
        "POSTROAD_SERVICE_PORT": "8222",
        "POSTROAD_SERVICE_PORT_ADMIN": "8222",
        "POSTROAD_PORT": "tcp://10.0.0.1:8222",
        "POSTROAD_PORT_8222_TCP": "tcp://10.0.0.1:8222",
        "POSTROAD_PORT_8222_TCP_ADDR": "10.0.0.1",
        "POSTROAD_HEADLESS_PORT_26502_UDP_PROTO": "udp",
    }
    assert load_config(environ=environ).config == NodeConfig()
    assert "no such setting" in mistake(file, POSTROAD_ADMIN_PORT="8222")
    assert [it.name for it in settings_keys().values() if is_reserved(it.variable)] == []


@each(
    (
        "[queues.tuning]\nhandler_s = 'abc'",
        "postroad.toml:2: queues.tuning.handler_timeout_s: expected a number, got 'abc'",
    ),
    (
        "[queues.tuning]\nhandlers_s = 1",
        "postroad.toml:2: there is no setting queues.tuning.handlers_s; "
        "did you mean queues.tuning.handler_timeout_s?",
    ),
    ("[queue]\nstore = 'a'", "postroad.toml:1: there is no setting queue; did you mean queues?"),
    ("name = 'a'", "postroad.toml:1: there is no setting name; did you mean node.name?"),
    ("zzzzzz = 1", "postroad.toml:1: there is no setting zzzzzz; `postroad config keys` lists all"),
    ("queues = 3", "postroad.toml:1: queues: expected a table, got 3"),
    ("node.name = { a = 1 }", "postroad.toml:1: node.name: expected a text, got a table"),
    ("node.name = true", "postroad.toml:1: node.name: expected a text, got True"),
    (
        "limits.accepted_connections_max = 1.5",
        "postroad.toml:1: limits.accepted_connections_max: expected a whole number, got 1.5",
    ),
    (
        "admin.remote = 'all'",
        "postroad.toml:1: admin.remote: expected one of off, read, change, got 'all'",
    ),
    (
        "node.layers = ['queues', 'male']",
        "postroad.toml:1: node.layers: expected a list of cluster, cells, queues, services, "
        "flows, got the list ['queues', 'male']",
    ),
    (
        "[queues.tuning]\nack_timeout_s = 1\nhandler_timeout_s = -1",
        "postroad.toml:3: queues.tuning: handler_timeout_s=-1.0 must be a finite number above 0",
    ),
    (
        "node.layers = ['flows']",
        "postroad.toml:1: node: layers: 'flows' needs 'queues', which is not listed",
    ),
)
def test_mistakes_in_the_file(text: str, told: str, file: Path) -> None:
    assert mistake(file, text) == told


def test_mistakes_in_the_environment_and_in_flags(file: Path) -> None:
    assert mistake(file, POSTROAD_QUEUES_TUNING_HANDLER_TIMEOUT_S="abc") == (
        "POSTROAD_QUEUES_TUNING_HANDLER_TIMEOUT_S: queues.tuning.handler_timeout_s: "
        "expected a number, got 'abc'"
    )
    assert mistake(file, POSTROAD_NODE_NAMES="a") == (
        "POSTROAD_NODE_NAMES: there is no such setting; did you mean POSTROAD_NODE_NAME?"
    )
    assert mistake(file, POSTROAD_LOG="debug") == (
        "POSTROAD_LOG: that is a table; give one of its settings, as POSTROAD_LOG_LEVEL"
    )
    assert mistake(file, flags={"queues.bridge": "maybe"}) == (
        "--set queues.bridge: expected true or false, got 'maybe'"
    )
    assert mistake(file, flags={"queues": "a"}) == (
        "--set queues: queues is a table; give one of its settings"
    )
    assert "did you mean queues.bridge?" in mistake(file, flags={"queues.bridges": "no"})
    assert mistake(file, flags={"cluster.properties": "a"}) == (
        "--set cluster.properties: expected a table, got 'a'"
    )


def test_every_mistake_is_told_once(file: Path) -> None:
    text = mistake(file, "node.names = 'a'\nqueues.bridge = 3", POSTROAD_NODE_BIND="nowhere")
    assert text.splitlines() == [
        "3 settings are wrong:",
        "  postroad.toml:1: there is no setting node.names; did you mean node.name?",
        "  postroad.toml:2: queues.bridge: expected true or false, got 3",
        "  POSTROAD_NODE_BIND: node: address 'nowhere' is not of the form host:port",
    ]
    # A certificate of a wrong type is there, but a table of only a key would be wrong too.
    text = mistake(file, "[admin]\ncertificate = 3\nkey = 'a.key'")
    assert text == "postroad.toml:2: admin.certificate: expected a text, got 3"


def test_file_that_is_not_toml_or_not_readable_is_a_mistake(file: Path) -> None:
    assert mistake(file, "[node]\nname = \n") == (
        "postroad.toml is not TOML: Invalid value (at line 2, column 8)"
    )
    file.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="is not a text in UTF-8"):
        load_config(environ={})
    file.write_bytes(b"\xef\xbb\xbfnode.name = 'alpha'\r\n")
    assert load_config(environ={}).config.node.name == "alpha"
    with pytest.raises(ConfigError, match=r"there is no file none\.toml; `postroad new`"):
        load_config(Path("none.toml"), {})
    file.unlink()
    file.mkdir()
    with pytest.raises(ConfigError, match=r"postroad\.toml cannot be read: Is a directory"):
        load_config(environ={})


def test_secrets_are_in_no_error_and_not_shown(file: Path) -> None:
    store = "postgresql://ann:sesame@db/x"
    told = mistake(file, f"[admin]\ntoken = ['{TOKEN}']\n[queues]\nbridge = '{store}'")
    assert TOKEN not in told
    assert "sesame" not in told
    assert f"postgresql://ann:{HIDDEN}@db/x" in told
    assert "sesame" not in mistake(file, f"node.bind = '{store}'")
    assert "'short'" not in mistake(file, POSTROAD_ADMIN_TOKEN="short")
    loaded = load_config(
        environ={"POSTROAD_ADMIN_TOKEN": TOKEN, "POSTROAD_QUEUES_STORE": "postgresql://a:b@c/d"}
    )
    assert loaded.config.admin.token == TOKEN
    assert loaded.shown("admin.token") == HIDDEN
    assert loaded.shown("queues.store") == f"postgresql://a:{HIDDEN}@c/d"
    assert loaded.shown("tls.key") is None


def test_names_are_near_and_values_are_toml(file: Path) -> None:
    key = settings_keys()["services.tuning.metadata"]
    value = {"a b": [1, True, 'say "x"'], "c": {"d": 1.5}}
    assert tomllib.loads(f"it = {format_value(key, value)}")["it"] == value
    known = ["queues.store", "queues.tuning.handler_timeout_s", "node.name"]
    assert nearest("queues.stor", known) == "queues.store"
    assert nearest("handler_timeout_s", known) == "queues.tuning.handler_timeout_s"
    assert nearest("nodename", known) == "node.name"
    assert nearest("zzz", known) is None


def test_environment_of_this_process_is_the_default(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [it for it in os.environ if it.startswith("POSTROAD_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("POSTROAD_NODE_NAME", "here")
    assert load_config().config.node.name == "here"
