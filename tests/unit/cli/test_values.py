"""Values as people read them."""

import time
from typing import Any

import pytest

from postroad.cli.values import parse_said, tell, tell_bytes, tell_count, tell_seconds
from tests.support.cases import each


@each(
    ("depth", None, ""),
    ("depth", 1234567, "1,234,567"),
    ("pid", 1234567, "1234567"),
    ("is_paused", True, "yes"),
    ("is_paused", False, "no"),
    ("oldest_s", 0.25, "250 ms"),
    ("round_trip_ms", 1.264, "1.26 ms"),
    ("round_trip_ms", 1234.56, "1,234.6 ms"),
    ("code", 5110, "5110"),
    ("requests_per_s", 1234.56, "1,234.6/s"),
    ("memory_bytes", 1536, "1.5 KiB"),
    ("size", 3, "3 B"),
    ("cpu_share", 0.256, "26%"),
    ("ratio", 0.5, "0.50"),
    ("ratio", float("inf"), "inf"),
    ("name", "a\nb", "a\nb"),
    ("nodes", ["a", "b"], "a, b"),
    ("flows", {"done": 3, "by": "ann"}, "done=3, by=ann"),
)
def test_fields_say_what_their_numbers_mean(name: str, value: Any, told: str) -> None:
    assert tell(name, value) == told


def test_times_sizes_and_counts_are_told_and_values_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    try:
        assert tell("died_at", 1_800_000_000.0) == "2027-01-15 08:00:00"
        assert tell("at", 1_800_000_000.9) == "2027-01-15 08:00:00"
    finally:
        monkeypatch.undo()
        time.tzset()
    assert tell_bytes(5 * 1024**5) == "5,120.0 TiB"
    assert tell_count(1, "message") == "1 message"
    assert tell_count(2_000, "entry") == "2,000 entries"
    for text, value in (
        ("2", 2),
        ("true", True),
        ('"2"', "2"),
        ("Ann", "Ann"),
        ("{", "{"),
        ("[1]", [1]),
        ("", ""),
    ):
        assert parse_said(text) == value, (text, value)


@each(
    (0.0, "0 ms"),
    (59.94, "59.9 s"),
    (61, "1 min 1 s"),
    (3_599.4, "59 min 59 s"),
    (7_260, "2 h 1 min"),
    (90_000, "1 d 1 h"),
)
def test_durations(seconds: float, told: str) -> None:
    assert tell_seconds(seconds) == told
