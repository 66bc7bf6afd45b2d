"""Jobs from files and texts, and back. What comes out of here is valid.

A job that is made in Python, `package.module:job`, is found by whoever may import things.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from postroad.core.errors import ConfigError, InvalidJobError
from postroad.pipeline.job import Job
from postroad.pipeline.validation import JobIssue, require_valid
from postroad.pipeline.validation.issues import fields_of, is_local_function


def job_from_data(data: Mapping[str, Any]) -> Job:
    """The job that a table says; raises InvalidJobError with every problem there is."""
    return require_valid(data)


def job_from_json(text: str | bytes) -> Job:
    """The job that a JSON text says; raises InvalidJobError with every problem there is."""
    try:
        data = json.loads(text, object_pairs_hook=_table)
    except (ValueError, RecursionError) as error:
        raise _not_a("JSON", error) from None
    return require_valid(data)


def job_from_toml(text: str | bytes) -> Job:
    """The job that a TOML text says; raises InvalidJobError with every problem there is."""
    try:
        data = tomllib.loads(text if isinstance(text, str) else text.decode())
    except (ValueError, RecursionError) as error:
        raise _not_a("TOML", error) from None
    return require_valid(data)


def load_job(path: str | os.PathLike[str]) -> Job:
    """The job in a file, `.json` or `.toml`; its problems name the file."""
    file = Path(path)
    decode = _DECODERS.get(file.suffix.lower())
    if decode is None:
        known = " or ".join(_DECODERS)
        raise ConfigError(f"{file}: a job is read from a file that ends in {known}")
    try:
        return decode(file.read_bytes())
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
    except InvalidJobError as error:
        raise InvalidJobError(f"{file}: {error}", error.problems) from None


def job_to_data(job: Job) -> dict[str, Any]:
    """A job as plain data without defaults; raises ConfigError if it has local functions."""
    local = [name for name in job.functions if is_local_function(name)]
    if local:
        raise ConfigError(
            f"job {job.name!r} cannot be saved: {', '.join(sorted(local))} cannot be imported;"
            " define functions at the top of a module instead"
        )
    data: dict[str, Any] = _plain(job)
    data.pop("functions", None)
    return data


def job_to_json(job: Job) -> str:
    """The JSON text that says a job, for people and for version control."""
    return json.dumps(job_to_data(job), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


_DECODERS: dict[str, Callable[[bytes], Job]] = {".json": job_from_json, ".toml": job_from_toml}


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a key that is there twice, as TOML does: the first value would be lost."""
    table = dict(pairs)
    if len(table) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {repeated!r} is there twice in one table")
    return table


def _not_a(language: str, error: Exception) -> InvalidJobError:
    problem = JobIssue("job", f"is not {language}: {error}")
    return InvalidJobError(f"the job cannot be read: {problem}", [problem])


def _plain(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return {
            field.encode_name: _plain(getattr(value, field.name))
            for field in fields_of(type(value))
            if field.required or getattr(value, field.name) != _default(field)
        }
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    # Members of enumerations are strings of a kind; data has plain ones.
    return str(value) if isinstance(value, str) else value


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default
