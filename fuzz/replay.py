"""Gives one input to one target, without atheris, and makes a crashing input smaller."""

from __future__ import annotations

import traceback

from fuzz.target import Target

# Tries of one shrinking; most inputs are as small as they get after a few hundred.
_TRIES_MAX = 2_000


def find_error(target: Target, data: bytes) -> BaseException | None:
    """What the input makes the target raise, if anything."""
    try:
        target.check(data)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return error
    return None


def describe_error(error: BaseException) -> str:
    """The traceback, as Python would print it."""
    return "".join(traceback.format_exception(error))


def shrink(target: Target, data: bytes) -> bytes:
    """A shorter input that raises the same kind of error, or the input itself."""
    error = find_error(target, data)
    if error is None:
        return data
    tries = 0
    size = len(data) // 2
    while size and tries < _TRIES_MAX:
        for start in range(0, len(data), max(1, size // 4)):
            tries += 1
            shorter = data[:start] + data[start + size :]
            if type(find_error(target, shorter)) is type(error):
                data = shorter
                break
        else:
            size //= 2
    return data
