"""Text for people: aligned columns, and fields one below the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

# What is longer is cut: names and error texts come from other domains, too.
_CELL_CHARACTERS_MAX = 300
_MARK = "..."


def format_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Rows in columns as wide as need be, below a line of headings."""
    lines = [tuple(headings), *(tuple(map(one_line, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def format_fields(pairs: Iterable[tuple[str, object]]) -> str:
    """A line for each name and value."""
    listed = [(f"{name}:", one_line(value)) for name, value in pairs]
    width = max((len(name) for name, _ in listed), default=0)
    return "\n".join(f"{name.ljust(width)}  {value}".rstrip() for name, value in listed)


def one_line(value: object, characters_max: int = _CELL_CHARACTERS_MAX) -> str:
    """A value as a short text without line breaks or control characters; None is a dash."""
    if value is None:
        return "-"
    text = " ".join(str(value).split())
    shown = "".join(it if it.isprintable() else "?" for it in text)
    return shown if len(shown) <= characters_max else shown[: characters_max - len(_MARK)] + _MARK


def format_names(values: Iterable[str], count_max: int = 5) -> str:
    """Some names in a row, and how many more there are; a dash if there are none."""
    listed = list(values)
    shown = ", ".join(listed[:count_max])
    more = len(listed) - count_max
    return f"{shown} and {more} more" if more > 0 else shown or "-"


def format_milliseconds(seconds: float | None) -> str:
    """A round trip; a dash if it was not measured."""
    return "-" if seconds is None else f"{seconds * 1000:.2f} ms"
