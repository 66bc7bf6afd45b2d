"""Whatever is written down as a configuration is read, or refused as one."""

from pathlib import Path
from typing import Any

import msgspec
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from postroad.core.errors import ConfigError
from postroad.node.keys import HIDDEN, settings_keys
from postroad.node.reading import format_value, load_config

KEYS = settings_keys()
NUMBERS = st.one_of(st.integers(), st.floats(), st.integers().map(lambda it: 10 ** (it % 500)))
TEXTS = st.one_of(
    st.text(), st.text(st.characters(categories=["Cs", "Cc", "Lu"])), NUMBERS.map(str)
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.text()),
    lambda it: st.one_of(st.lists(it, max_size=3), st.dictionaries(st.text(), it, max_size=3)),
)
REPEATED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def check(path: Path | None, environ: dict[str, str], flags: dict[str, str]) -> None:
    """Nothing is raised but what is promised, and what was read can be shown."""
    try:
        loaded = load_config(path, environ, flags)
    except ConfigError as error:
        assert str(error)
        return
    for name, key in KEYS.items():
        format_value(key, loaded.value(name))
        msgspec.json.encode(loaded.shown(name))


@REPEATED
@given(st.sampled_from([*KEYS]), TEXTS)
@example("limits.accepted_connections_max", "1" + "0" * 400)
@example("cluster.seeds", "[" * 5000)
@example("node.data", "\udcff")
@example("queues.tuning.handler_timeout_s", "nan")
@example("admin.request_timeout_s", "nan")
@example("limits.requests_pending_max", str(1 << 40))
@example("cells.tuning.redial_initial_delay_s", "1e9")
def test_texts(name: str, text: str) -> None:
    check(None, {KEYS[name].variable: text}, {})
    check(None, {}, {name: text})


@REPEATED
@given(st.text(), TEXTS)
def test_names(name: str, text: str) -> None:
    check(None, {f"POSTROAD_{name}": text}, {name: text})


def write(value: Any) -> str:
    """As TOML, which has no nothing."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{write(str(k))} = {write(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(write, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    return msgspec.json.encode("" if value is None else value).decode()


@REPEATED
@given(st.sampled_from([*KEYS, "mail", "tls", "node.nothing"]), JSON)
@example("limits.accepted_connections_max", 10**400)
def test_files(tmp_path: Path, name: str, value: Any) -> None:
    path = tmp_path / "postroad.toml"
    path.write_text(f"{name} = {write(value)}\n", encoding="utf-8")
    check(path, {}, {})


@REPEATED
@given(st.binary(max_size=200))
@example(b"a = " + b"[" * 5000)
def test_bytes(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "postroad.toml"
    path.write_bytes(content)
    check(path, {}, {})


@given(st.text(st.characters(categories=["L"]), min_size=16, max_size=40))
def test_tokens_are_never_shown(token: str) -> None:
    for name in ("admin.token", "admin.read_token", "node.secret"):
        loaded = load_config(None, {}, {name: token})
        assert loaded.value(name) == token
        assert loaded.shown(name) == HIDDEN
        assert token not in format_value(KEYS[name], token)
