"""Settings that every kind of search checks alike."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from postroad.core import Address
from postroad.core.errors import ConfigError

T = TypeVar("T")


def validate_port(address: Address) -> Address:
    """Return the address if somebody can be reached there, else raise ConfigError."""
    if not 0 < address.port < 65536:
        raise ConfigError(f"address {address}: the port of a contact must be 1 to 65535")
    return address


def validate_list(name: str, values: Iterable[T]) -> list[T]:
    """Return several values as a list; a single text, whose letters would be taken, is an error."""
    if isinstance(values, str):
        raise ConfigError(f"{name} must be a list, such as [{values!r}], not a single text")
    return list(values)


def validate_seconds(name: str, value: float) -> float:
    """Return a duration if it is above zero and has an end, else raise ConfigError."""
    if not 0 < value < float("inf"):
        raise ConfigError(f"{name} is {value!r}; it must be a number of seconds above 0")
    return value
