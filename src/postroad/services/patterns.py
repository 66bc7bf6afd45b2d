"""Patterns of event names, with the wildcards of the original system.

`*` is any run of characters without a dot, `**` any run at all, `?` any one character. A few odd
rules are kept, because sender and receiver must agree on who hears what:

- a pattern whose only wildcard is a `*` at its end lets a dot directly behind the prefix pass:
  `user.*` matches `user..x`, `us*` matches `us.x`;
- a pattern with wildcards elsewhere is loose about dots: there each one matches any character.

Other characters stand for themselves. Matching takes time in proportion to the name, whatever the
pattern, as patterns come from other nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

Matcher = Callable[[str], bool]

_ANY_RUN = "**"
_RUN = "*"
_ANY_ONE = "?"


def matches(name: str, pattern: str) -> bool:
    """Whether the name of an event fits a pattern."""
    return compile_pattern(pattern)(name)


@lru_cache(maxsize=4096)
def compile_pattern(pattern: str) -> Matcher:
    """A function that says whether a name fits."""
    stars = pattern.count("*")
    if "?" in pattern or stars > 2:
        return _compile_general(pattern)
    if not stars:
        return pattern.__eq__
    if pattern == _RUN:
        return lambda name: "." not in name
    if stars == 2 and pattern.endswith(_ANY_RUN):
        prefix = pattern[:-2]
        return lambda name: name.startswith(prefix)
    if stars == 1 and pattern.endswith(_RUN):
        prefix, size = pattern[:-1], len(pattern)
        return lambda name: name.startswith(prefix) and name.find(".", size) < 0
    return _compile_general(pattern)


def _compile_general(pattern: str) -> Matcher:
    """All states at once: bit n of a number is set if the first n tokens fit what was read.

    A run may be empty, so the state before it is also the state after it.
    """
    tokens = _tokens(pattern)
    runs = _bits(tokens, _RUN, _ANY_RUN)
    any_runs = _bits(tokens, _ANY_RUN)
    any_ones = _bits(tokens, _ANY_ONE, ".")
    plain = set(tokens) - {_RUN, _ANY_RUN, _ANY_ONE}
    literals = {token: _bits(tokens, token) | any_ones for token in plain}
    first = 1 | (runs & 1) << 1
    last = 1 << len(tokens)

    def fits(name: str) -> bool:
        states = first
        for character in name:
            staying = any_runs if character == "." else runs
            moved = (states & literals.get(character, any_ones)) << 1 | states & staying
            states = moved | (moved & runs) << 1
        return bool(states & last)

    return fits


def _tokens(pattern: str) -> list[str]:
    """The characters of a pattern, with each run of stars as one token."""
    tokens: list[str] = []
    for character in pattern:
        if character == _RUN and tokens and tokens[-1] in (_RUN, _ANY_RUN):
            tokens[-1] = _ANY_RUN
        else:
            tokens.append(character)
    return tokens


def _bits(tokens: list[str], *wanted: str) -> int:
    return sum(1 << number for number, token in enumerate(tokens) if token in wanted)
