"""One mistake in a job, and how it is informed: where it is, and what was probably meant."""

from __future__ import annotations

import difflib
import functools
import math
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

# More words than these are no help in a sentence.
_WORDS_LISTED_MAX = 20


class JobIssue(msgspec.Struct, frozen=True):
    """A mistake in a job."""

    entry: str
    """Where: `catalog 'parse'`, `flow condition 3 (from 'parse')`."""
    text: str
    """What is wrong."""
    keys: tuple[str, ...] = ()
    """The keys of the entry it is about."""

    def __str__(self) -> str:
        return f"{self.entry}: {self.text}"


def nearest(word: str, words: Iterable[str]) -> str | None:
    """The word most like a misspelt one, if any is."""
    by_folded = {known.casefold(): known for known in words}
    close = difflib.get_close_matches(word.casefold(), by_folded, n=1)
    return by_folded[close[0]] if close else None


def suggestion(word: str, words: Iterable[str]) -> str:
    """The end of a sentence about an unknown word."""
    known = list(dict.fromkeys(words))
    close = nearest(word, known)
    if close is not None:
        return f"; did you mean {close!r}?"
    if 0 < len(known) <= _WORDS_LISTED_MAX:
        return f"; known: {', '.join(map(repr, known))}"
    return ""


def is_import_path(path: str) -> bool:
    """Whether it looks like `package.module:name`, where the name may have dots as well."""
    module, colon, name = path.partition(":")
    return bool(colon) and all(
        part.isidentifier() for dotted in (module, name) for part in dotted.split(".")
    )


def is_local_function(path: str) -> bool:
    """Whether it names a function that a job has with it, such as a lambda."""
    return path.startswith("<") and path.endswith(">")


@functools.cache
def fields_of(kind: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """The fields of a structure; to find them out takes a while."""
    return msgspec.structs.fields(kind)


def default_of(kind: type[msgspec.Struct], key: str) -> Any:
    """The default of a key."""
    (field,) = (field for field in fields_of(kind) if field.name == key)
    return field.default


def bad_import_path(entry: str, key: str, path: str | None) -> Iterator[JobIssue]:
    """Report what cannot be an import path; None is none at all."""
    if path is not None and not is_import_path(path) and not is_local_function(path):
        text = f"{key} {path!r} is not an import path like 'package.module:name'"
        yield JobIssue(entry, text, (key,))


def bad_name(entry: str, name: str) -> Iterator[JobIssue]:
    """Report a name that cannot be shown to people."""
    if not name or not name.isprintable():
        yield JobIssue(entry, f"name {name!r} must be printable characters, one or more", ("name",))


def bad_numbers(
    entry: str, values: msgspec.Struct, keys: Iterable[str], prefix: str = ""
) -> Iterator[JobIssue]:
    """Report numbers that are not finite and above 0; None is none at all."""
    for key in keys:
        value = getattr(values, key)
        if value is not None and not 0 < value < math.inf:
            text = f"{prefix}{key}={value!r} must be a finite number above 0"
            yield JobIssue(entry, text, (prefix + key,))


def bad_data(entry: str, key: str, value: Any) -> Iterator[JobIssue]:
    """Report what would not survive being written down as JSON and read again."""
    for path, odd in _odd_values(key, value):
        text = f"{path}={odd!r} is not plain data: null, booleans, finite numbers, strings, "
        yield JobIssue(entry, text + "lists, and tables with strings for keys", (key,))


def _odd_values(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                yield f"a key of {path}", key
            yield from _odd_values(f"{path}.{key}", item)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _odd_values(f"{path}[{number}]", item)
    elif isinstance(value, float):
        if not math.isfinite(value):
            yield path, value
    elif not isinstance(value, str | int | None):
        yield path, value
