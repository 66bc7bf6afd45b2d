"""Reads the configuration of a node: `postroad.toml`, then the environment, then flags.

What comes later wins. Every mistake is told, with where it was made and what would be right.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple, get_origin, get_type_hints

import msgspec

from postroad.core.errors import ConfigError

from .former_settings import current_name, former_names
from .keys import (
    HIDDEN,
    PREFIX,
    Key,
    describe,
    essence,
    is_optional,
    sections,
    settings_keys,
    struct_in,
    variable_of,
    without_passwords,
)
from .settings import NodeConfig

logger = logging.getLogger("postroad.node")

FILE = "postroad.toml"
DEFAULT = "default"
CONFIG_VARIABLE = "POSTROAD_CONFIG"
RESERVED_VARIABLES = (
    # Of the `postroad` command.
    CONFIG_VARIABLE,
    "POSTROAD_CA",
    "POSTROAD_CONTEXT",
    "POSTROAD_TOKEN",
    "POSTROAD_TOKEN_FILE",
    "POSTROAD_URL",
    "POSTROAD_NO_*",
    # Of the tests.
    "POSTROAD_CHAOS_*",
    "POSTROAD_LOOP",
    "POSTROAD_REQUIRE_ALL",
    "POSTROAD_SEED",
    "POSTROAD_SLOW_MACHINE",
    "POSTROAD_SYNC_DELAY_MS",
    "POSTROAD_TIER",
)
"""Variables that are no settings."""

# What it sets in every container for a service, such as one called `postroad`.
_KUBERNETES = re.compile(
    r"\w+_SERVICE_(HOST|PORT(_\w+)?)|\w+_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?"
)
_KUBERNETES_PORT = re.compile(r"(tcp|udp|sctp)://.+")

_NUMBER_MAX = 2**63
_TOLD_CHARACTERS_MAX = 80
_YES, _NO = frozenset({"true", "yes", "on", "1"}), frozenset({"false", "no", "off", "0"})
_HEADER = re.compile(r"^\s*\[+\s*([\w.\-\s]+?)\s*\]+")
_ASSIGNMENT = re.compile(r"^\s*([\w.\-]+)\s*=")


class Loaded(NamedTuple):
    """A configuration, and where each value of it comes from."""

    config: NodeConfig
    origins: dict[str, str]
    """Dotted name of a setting -> `default`, `postroad.toml:12`, a variable, or a flag."""
    path: Path | None
    """The file that was read."""

    def value(self, name: str) -> Any:
        """What a setting is, by its dotted name."""
        value: Any = self.config
        for part in name.split("."):
            value = None if value is None else getattr(value, part)
        return value

    def shown(self, name: str) -> Any:
        """The same as plain data, without what is secret."""
        return settings_keys()[name].show(self.value(name))


class _Given(NamedTuple):
    """What somebody wrote for a setting."""

    value: Any
    origin: str
    is_text: bool
    """Whether the type must be read out of it."""


def load_config(
    path: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    flags: Mapping[str, str] | None = None,
    flag_names: Mapping[str, str] | None = None,
) -> Loaded:
    """Read the configuration of a node.

    Args:
        path: the file; by default what `POSTROAD_CONFIG` names, or else `postroad.toml` in the
            current directory if that is there.
        environ: where variables are looked for.
        flags: dotted names and texts.
        flag_names: how the user wrote a flag, if it was not `--set name=text`.

    Raises:
        ConfigError: something is wrong; every mistake is told.
    """
    found = _find(path, environ)
    problems: list[str] = []
    given: dict[str, _Given] = {}
    if found is not None:
        given.update(_from_file(found, problems))
    given.update(_from_environment(environ, problems))
    given.update(_from_flags(flags or {}, flag_names or {}, problems))
    values = _convert_all(given, problems)
    config = _build(NodeConfig, NodeConfig(), "", values, given, problems)
    if problems:
        raise ConfigError(_tell(problems))
    origins = {name: given[name].origin if name in given else DEFAULT for name in settings_keys()}
    return Loaded(config, origins, found)


def _tell(problems: list[str]) -> str:
    if len(problems) == 1:
        return problems[0]
    return "\n  ".join((f"{len(problems)} settings are wrong:", *problems))


# Where values are.


def _find(path: Path | None, environ: Mapping[str, str]) -> Path | None:
    if path is None and environ.get(CONFIG_VARIABLE):
        path = Path(environ[CONFIG_VARIABLE])
    if path is not None:
        return path
    return Path(FILE) if Path(FILE).exists() else None


def _from_file(path: Path, problems: list[str]) -> dict[str, _Given]:
    try:
        # Some editors begin a file with a mark of its encoding.
        text = path.read_text(encoding="utf-8-sig")
        data = tomllib.loads(text)
    except FileNotFoundError:
        raise ConfigError(f"there is no file {path}; `postroad new` writes a first one") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not a text in UTF-8; save it as one") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    lines = _lines_of(text)
    given = {}
    for name, value in _flatten(data, ""):
        origin = _place(path, name, lines)
        if (current := current_name(name)) in settings_keys():
            if current != name:
                _warn_of_former_name(origin, name, current)
            given[current] = _Given(value, origin, False)
        elif name in sections():
            problems.append(f"{origin}: {name}: expected a table, got {_told(value)}")
        else:
            problems.append(f"{origin}: {_unknown(name)}")
    return given


def _flatten(data: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Values by their dotted names; tables that are no section are values."""
    for key, value in data.items():
        name = prefix + key
        if isinstance(value, dict) and current_name(name) in sections():
            yield from _flatten(value, f"{name}.")
        else:
            yield name, value


def _lines_of(text: str) -> dict[str, int]:
    """Where names stand, as far as a look at each line tells: good enough to point at."""
    lines: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            name = header[1].replace(" ", "")
            table = f"{name}."
        elif assignment := _ASSIGNMENT.match(line):
            name = table + assignment[1]
        else:
            continue
        lines.setdefault(name, number)
    return lines


def _place(path: Path, name: str, lines: Mapping[str, int]) -> str:
    while name:
        if name in lines:
            return f"{path}:{lines[name]}"
        name = name.rpartition(".")[0]
    return str(path)


def _from_environment(environ: Mapping[str, str], problems: list[str]) -> dict[str, _Given]:
    variables = {key.variable: key.name for key in settings_keys().values()}
    former = {variable_of(old): name for name in settings_keys() for old in former_names(name)}
    given = {}
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or is_reserved(variable, environ[variable]):
            continue
        if (name := variables.get(variable)) is None and (name := former.get(variable)) is not None:
            _warn_of_former_name("environment", variable, variable_of(name))
        if name is not None:
            given[name] = _Given(environ[variable], variable, True)
            continue
        within = next((it for it in variables if it.startswith(f"{variable}_")), None)
        if within is not None:
            problems.append(f"{variable}: that is a table; give one of its settings, as {within}")
            continue
        close = difflib.get_close_matches(variable, variables, n=1)
        hint = f"did you mean {close[0]}?" if close else "`postroad config keys` lists all"
        problems.append(f"{variable}: there is no such setting; {hint}")
    return given


def is_reserved(variable: str, value: str = "") -> bool:
    """Whether a variable is used for something else than a setting."""
    if _KUBERNETES.fullmatch(variable):
        return True
    # A port alone could be somebody's mistake, but not with such a value.
    if variable.endswith("_PORT") and _KUBERNETES_PORT.fullmatch(value):
        return True
    return any(fnmatchcase(variable, it) for it in RESERVED_VARIABLES)


def _from_flags(
    flags: Mapping[str, str], names: Mapping[str, str], problems: list[str]
) -> dict[str, _Given]:
    given = {}
    for name, text in flags.items():
        origin = names.get(name, f"--set {name}")
        if (current := current_name(name)) in settings_keys():
            if current != name:
                _warn_of_former_name(origin, name, current)
            given[current] = _Given(text, origin, True)
        elif name in sections():
            problems.append(f"{origin}: {name} is a table; give one of its settings")
        else:
            problems.append(f"{origin}: {_unknown(name)}")
    return given


def _warn_of_former_name(origin: str, former: str, current: str) -> None:
    logger.warning(
        "%s: %s is called %s now; its former name is deprecated", origin, former, current
    )


def _unknown(name: str) -> str:
    close = nearest(name, (*settings_keys(), *sections()))
    hint = f"did you mean {close}?" if close else "`postroad config keys` lists all"
    return f"there is no setting {name}; {hint}"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The valid name that somebody may have meant."""
    names = [*known]
    section, _, last = name.rpartition(".")
    siblings = {it.rpartition(".")[2]: it for it in names if it.rpartition(".")[0] == section}
    if close := difflib.get_close_matches(last, siblings, n=1):
        return siblings[close[0]]
    elsewhere = [it for it in names if it.rpartition(".")[2] == last]
    if elsewhere:
        return max(elsewhere, key=lambda it: difflib.SequenceMatcher(None, it, name).ratio())
    close = difflib.get_close_matches(name, names, n=1)
    return close[0] if close else None


# From what was written to a tree of values.


def _convert_all(given: Mapping[str, _Given], problems: list[str]) -> dict[str, Any]:
    values = {}
    for name, it in given.items():
        key = settings_keys()[name]
        try:
            value = _parse(it.value, key.kind) if it.is_text else it.value
            values[name] = _convert(value, key.kind)
        except (ValueError, OverflowError, RecursionError):
            got = "something else" if key.is_secret else _told(it.value)
            where = it.origin if name in it.origin else f"{it.origin}: {name}"
            problems.append(f"{where}: expected {describe(key.kind)}, got {got}")
    return values


def _told(value: Any) -> str:
    if isinstance(value, dict):
        return "a table"
    told = without_passwords(repr(value))
    told = told if len(told) <= _TOLD_CHARACTERS_MAX else f"{told[:_TOLD_CHARACTERS_MAX]}…"
    return f"the list {told}" if isinstance(value, list) else told


def _parse(text: str, kind: Any) -> Any:
    """The value that a text stands for; ValueError if it cannot."""
    if is_optional(kind) and not text:
        return None
    wanted = essence(kind)
    if wanted is bool:
        if text.lower() not in _YES | _NO:
            raise ValueError(text)
        return text.lower() in _YES
    if wanted in (int, float):
        return wanted(text)
    if get_origin(wanted) is tuple:
        if text.lstrip().startswith("["):
            return msgspec.json.decode(text)
        return [it.strip() for it in text.split(",") if it.strip()]
    if get_origin(wanted) is dict:
        return msgspec.json.decode(text)
    return text


def _convert(value: Any, kind: Any) -> Any:
    if value is None and is_optional(kind):
        return None
    if isinstance(value, int) and abs(value) > _NUMBER_MAX:
        raise ValueError(value)
    # What cannot be written cannot be shown either: a text that is no Unicode.
    msgspec.json.encode(value)
    return msgspec.convert(value, essence(kind))


def _build(
    owner: type[msgspec.Struct],
    defaults: Any,
    prefix: str,
    values: Mapping[str, Any],
    given: Mapping[str, _Given],
    problems: list[str],
) -> Any:
    """A struct with the values below a name; its defaults if they cannot make one."""
    kinds = get_type_hints(owner)
    fields: dict[str, Any] = {}
    for field in owner.__struct_fields__:
        name, inner = f"{prefix}{field}", struct_in(kinds[field])
        default = None if defaults is None else getattr(defaults, field)
        if inner is not None:
            if any(it.startswith(f"{name}.") for it in given):
                fields[field] = _build(inner, default, f"{name}.", values, given, problems)
            elif default is not None:
                fields[field] = default
        elif name in values:
            fields[field] = values[name]
        elif defaults is not None:
            fields[field] = default
    section = prefix.rstrip(".")
    if missing := _missing(section, fields):
        # What was given and is wrong has been told already.
        problems += [it for it in missing if it.partition(" ")[0] not in given]
        return defaults
    try:
        return owner(**fields)
    except ConfigError as error:
        if all(it in values for it in _given_in(section, given)):
            problems.append(_blame(section, str(error), given))
        return defaults


def _given_in(section: str, given: Mapping[str, _Given]) -> list[str]:
    return [it for it in given if it.rpartition(".")[0] == section]


def _missing(section: str, fields: Mapping[str, Any]) -> list[str]:
    required = (it for it in settings_keys().values() if it.section == section and it.is_required)
    return [
        f"{it.name} is missing; {section} needs it"
        for it in required
        if it.name.rpartition(".")[2] not in fields
    ]


def _blame(section: str, text: str, given: Mapping[str, _Given]) -> str:
    """What a struct says against its values, with where the value comes from that it names."""
    names = _given_in(section, given)
    named = [it for it in names if re.search(rf"\b{it.rpartition('.')[2]}\b", text)]
    origins = {given[it].origin for it in named or names}
    where = f"{origins.pop()}: " if len(origins) == 1 else ""
    safe = without_passwords(text)
    for name in names:
        if settings_keys()[name].is_secret:
            safe = safe.replace(str(given[name].value), HIDDEN)
    return f"{where}{section}: {safe}"


def format_value(key: Key, value: Any) -> str:
    """A value as it would stand in the file, without what is secret; empty if it is not set."""
    shown = key.show(value)
    return "" if shown is None else _toml(shown)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        pairs = (f"{_toml(str(key))} = {_toml(it)}" for key, it in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str | bool):
        return msgspec.json.encode(value).decode()
    return str(value)
