"""Schemas of typed queues, from programs and files, and whether two versions fit together."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from postroad.core.errors import ConfigError
from postroad.node.app import App, app_of, load_module
from postroad.node.queues.codec import Codec
from postroad.node.queues.queue import Queue
from postroad.node.queues.queue_types import declared_queues, schemas_of
from postroad.node.queues.schema_compatibility import Break, Mode, find_breaks
from postroad.services.asyncapi import QueueChannel

__all__ = ["Mode", "SchemaBreak", "SchemaReport", "check_schemas", "dump_schemas"]

_KEY = "queues"
_ALONE = ""
"""Stands for the name of a queue where a file has a schema alone."""

Schemas = Mapping[str, Any]


class SchemaBreak(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why messages of one version are not understood by the other."""

    queue: str
    direction: Mode
    """`backward`: the new version does not read what the old one wrote; `forward`: the reverse."""
    place: str
    reason: str
    example: Any = msgspec.UNSET
    """A message that is sent and not understood."""


class SchemaReport(msgspec.Struct, frozen=True):
    """What a comparison has shown."""

    mode: Mode
    is_compatible: bool
    breaks: list[SchemaBreak]


def dump_schemas(target: str) -> str:
    """The schemas of the typed queues of a program, as a file that `check_schemas` reads.

    Raises:
        ConfigError: there is no such program, or it has no typed queue.
    """
    document = {_KEY: dict(load_schemas(target))}
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def check_schemas(old: str, new: str, mode: Mode) -> SchemaReport:
    """Compare two versions of the types of queues.

    Args:
        old, new: a file with schemas, a program such as `app.py`, or `module:name` of a queue or
            of a type.

    Raises:
        ConfigError: one of them cannot be read, or has no schema.
    """
    before, after = _paired(load_schemas(old), load_schemas(new))
    breaks: list[SchemaBreak] = []
    if mode is not Mode.FORWARD:
        breaks += _compare(before, after, Mode.BACKWARD)
    if mode is not Mode.BACKWARD:
        breaks += _compare(after, before, Mode.FORWARD)
    return SchemaReport(mode, not breaks, breaks)


def _paired(old: Schemas, new: Schemas) -> tuple[Schemas, Schemas]:
    """A schema alone is compared with the only one of the other version."""
    if _ALONE not in old and _ALONE not in new:
        return old, new
    if len(old) != 1 or len(new) != 1:
        raise ConfigError(
            "a schema without the name of its queue can only be compared with one schema; "
            f"there are {len(old)} and {len(new)}"
        )
    name = next(name for name in (*old, *new) if name or len({*old, *new}) == 1)
    return {name: next(iter(old.values()))}, {name: next(iter(new.values()))}


def _compare(writer: Schemas, reader: Schemas, direction: Mode) -> Iterator[SchemaBreak]:
    is_backward = direction is Mode.BACKWARD
    names = ("the old version", "the new version")
    writer_name, reader_name = names if is_backward else names[::-1]
    for queue, schema in writer.items():
        if queue in reader:
            breaks = find_breaks(
                schema, reader[queue], writer_name=writer_name, reader_name=reader_name
            )
        elif is_backward:
            breaks = [Break("$", "the new version does not have this queue any more")]
        else:
            continue  # A new queue: the old version does not consume it.
        for each in breaks:
            yield SchemaBreak(queue, direction, each.place, each.reason, each.example)


# Where schemas come from.


def load_schemas(target: str) -> Schemas:
    """The schemas of a file or a program, by queue.

    Raises:
        ConfigError: it cannot be read, or has none.
    """
    if target.endswith(".json"):
        return _read_file(Path(target))
    module_name, _, name = target.partition(":")
    module = load_module(module_name)
    if name:
        if not hasattr(module, name):
            raise ConfigError(f"{module_name} has no {name!r}")
        return _schemas_of_value(getattr(module, name), target)
    schemas = schemas_of(declared_queues(app_of(module)))
    if not schemas:
        raise ConfigError(f"{target} has no typed queue")
    return schemas


def _schemas_of_value(value: Any, target: str) -> Schemas:
    if isinstance(value, Queue):
        return {value.name: value.codec.schema()}
    if inspect.isclass(value):
        return {_ALONE: Codec(value).schema()}
    raise ConfigError(f"{target} is neither a Queue nor a type: {value!r:.60}")


def _read_file(path: Path) -> Schemas:
    try:
        document = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path} is no JSON: {error}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{path} has no JSON Schema: it is no object")
    found = document.get(_KEY)
    return found if isinstance(found, dict) else {_ALONE: document}


def queue_channels(app: App) -> Iterator[QueueChannel]:
    """The typed queues of an app, for its AsyncAPI document."""
    consumed = {consumer.queue: consumer.handler.__doc__ for consumer in app.consumers}
    queues = declared_queues(app)
    for name, schema in schemas_of(queues).items():
        description = inspect.cleandoc(consumed.get(name) or "")
        yield QueueChannel(name, schema, name in consumed, description)
