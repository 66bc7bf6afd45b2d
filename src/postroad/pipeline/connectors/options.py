"""Validation of connector options."""

from __future__ import annotations

import functools
import os
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec
from urllib.parse import urlsplit

import msgspec

from postroad.core.errors import ConfigError
from postroad.pipeline.connectors.connector import decode_segment
from postroad.pipeline.job import Segment

P = ParamSpec("P")

PAYLOAD = "payload"
"""What bytes that are no further decoded are called in a segment."""


def _wrap(payload: bytes) -> Segment:
    return {PAYLOAD: payload}


CODECS: Mapping[str, Callable[[bytes], Segment]] = {
    "json": msgspec.json.Decoder(dict[str, Any]).decode,
    "msgpack": decode_segment,
    "raw": _wrap,
}
"""How segments may be encoded, and what decodes them."""


class ClientTlsFiles(msgspec.Struct, frozen=True):
    """Files for TLS; what is not given is as the machine has it.

    It keeps absolute paths, because it goes to processes that run in other directories.
    """

    ca: str | None = None
    """Certificates of those who may vouch for the server."""
    cert: str | None = None
    """Our own certificate."""
    key: str | None = None
    """Its key."""

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ConfigError("give both tls_cert and tls_key, or neither")
        for name in self.__struct_fields__:
            if path := getattr(self, name):
                msgspec.structs.force_setattr(self, name, os.path.abspath(path))

    @property
    def is_given(self) -> bool:
        """Whether there is any."""
        return self != ClientTlsFiles()

    def context(self) -> ssl.SSLContext:
        """A context for clients; raises ConfigError if a file cannot be used."""
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key)
        except OSError as error:
            files = ", ".join(path for path in (self.ca, self.cert, self.key) if path)
            raise ConfigError(f"tls_ca, tls_cert, tls_key: {files}: {error}") from error
        return context


def accept_old_names(**names: str) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Have the options of a connector also go by the names they had before 0.2.

    Args:
        names: the new names by the old ones.
    """

    def decorate(init: Callable[P, None]) -> Callable[P, None]:
        @functools.wraps(init)
        def renaming(*args: P.args, **options: P.kwargs) -> None:
            for old in names.keys() & options.keys():
                if names[old] in options:
                    raise ConfigError(f"{old!r} is an old name of {names[old]!r}: give one of them")
            init(*args, **{names.get(name, name): value for name, value in options.items()})  # type: ignore[arg-type]  # the same but for names

        return renaming

    return decorate


def check_codec(codec: str) -> str:
    """Refuse an unknown one."""
    if codec not in CODECS:
        raise ConfigError(f"codec is {codec!r}; it must be one of {', '.join(sorted(CODECS))}")
    return codec


def check_name(option: str, value: object, forbidden: str = "") -> str:
    """Refuse what is no name."""
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{option} is {value!r}; it must be a name")
    if bad := sorted(char for char in set(value) if char in forbidden or char.isspace()):
        raise ConfigError(f"{option} is {value!r}; it must not have {' '.join(map(repr, bad))}")
    return value


def check_url(option: str, value: object, schemes: Sequence[str]) -> str:
    """Refuse what is no URL, or none of these kinds."""
    if not isinstance(value, str) or urlsplit(value).scheme not in schemes:
        # What it is instead is not shown: there may be a password in it.
        kinds = ", ".join(f"{scheme}://" for scheme in schemes)
        raise ConfigError(f"{option} must be a URL that begins with one of {kinds}")
    return value


def check_positive(option: str, value: object) -> int:
    """Refuse what is no whole number above zero."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{option} is {value!r}; it must be a whole number above 0")
    return value


def check_seconds(option: str, value: object) -> float:
    """Refuse what is no number of seconds."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1e9:
        raise ConfigError(f"{option} is {value!r}; it must be a number of seconds")
    return value


def check_flag(option: str, value: object) -> bool:
    """Refuse what is neither true nor false."""
    if not isinstance(value, bool):
        raise ConfigError(f"{option} is {value!r}; it must be true or false")
    return value


def check_columns(value: object) -> list[str] | None:
    """Names of columns; raises ConfigError unless it is a list of names, or nothing."""
    if value is None:
        return None
    if not isinstance(value, list | tuple) or not value or not all(map(_is_name, value)):
        raise ConfigError(f"option 'columns' is {value!r}; it must be a list of names")
    return list(value)


def check_types(option: str, value: object) -> dict[str, str]:
    """Types of columns by name; raises ConfigError unless it is a table of texts."""
    is_table = isinstance(value, Mapping) and all(map(_is_name, (*value, *value.values())))
    if not is_table:
        raise ConfigError(f"option {option!r} is {value!r}; it must have types by name")
    return dict(value)  # type: ignore[call-overload, no-any-return]


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value)
