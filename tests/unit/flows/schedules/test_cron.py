"""Cron expressions: what they mean, when clocks change, and what is refused."""

import sys
import zoneinfo
from collections.abc import Iterator
from datetime import datetime
from itertools import accumulate, product
from zoneinfo import ZoneInfo

import pytest

from postroad.core.errors import ConfigError, UsageError
from postroad.flows.schedules.cron import CronExpression
from tests.support.cases import each, naming


def ms(moment: str, zone: str = "UTC") -> int:
    """Milliseconds since 1970 at an ISO time, in the zone unless it has an offset."""
    at = datetime.fromisoformat(moment)
    at = at if at.tzinfo else at.replace(tzinfo=ZoneInfo(zone))
    return round(at.timestamp() * 1000)


def iso(moment_ms: int, zone: str = "UTC") -> str:
    """A moment as people of the zone write it, with its offset elsewhere."""
    at = datetime.fromtimestamp(moment_ms / 1000, ZoneInfo(zone))
    return at.replace(tzinfo=None).isoformat(" ", "minutes") if zone == "UTC" else at.isoformat(" ")


def due(text: str, start: str, count: int, zone: str = "UTC") -> list[str]:
    """The next moments after a start."""
    cron = CronExpression.parse(text, zone)
    moments = accumulate(range(count), lambda at, _: cron.next_after(at), initial=ms(start, zone))
    return [iso(at, zone) for at in moments][1:]


@each(
    ("* * * * *", "2026-03-01 10:00", ["2026-03-01 10:01", "2026-03-01 10:02"]),
    ("*/15 * * * *", "2026-03-01 10:50", ["2026-03-01 11:00", "2026-03-01 11:15"]),
    ("5/20 * * * *", "2026-03-01 10:06", ["2026-03-01 10:25", "2026-03-01 10:45"]),
    ("10-30/10 9 * * *", "2026-03-01 09:15", ["2026-03-01 09:20", "2026-03-01 09:30"]),
    ("0,30 8,20 * * *", "2026-03-01 08:30", ["2026-03-01 20:00", "2026-03-01 20:30"]),
    ("0 0 1 * *", "2026-12-31 23:59", ["2027-01-01 00:00", "2027-02-01 00:00"]),
    ("0 0 31 * *", "2026-01-31 00:00", ["2026-03-31 00:00", "2026-05-31 00:00"]),
    ("0 0 29 2 *", "2026-01-01", ["2028-02-29 00:00", "2032-02-29 00:00"]),
    ("0 0 29 2 *", "2096-02-29", ["2104-02-29 00:00", "2108-02-29 00:00"]),
    ("0 12 * jan,JUL *", "2026-01-31 12:00", ["2026-07-01 12:00", "2026-07-02 12:00"]),
    ("0 12 * * Mon-fri", "2026-03-06 12:00", ["2026-03-09 12:00", "2026-03-10 12:00"]),
    ("0 0 * * 0", "2026-03-01 00:00", ["2026-03-08 00:00", "2026-03-15 00:00"]),
    ("0 0 * * 7", "2026-03-01 00:00", ["2026-03-08 00:00", "2026-03-15 00:00"]),
    ("0 0 * * sat-sun", "2026-03-01 00:00", ["2026-03-07 00:00", "2026-03-08 00:00"]),
    ("0 0 * * sun-mon", "2026-03-01 00:00", ["2026-03-02 00:00", "2026-03-08 00:00"]),
    ("0 0 * * */2", "2026-03-01 00:00", ["2026-03-03 00:00", "2026-03-05 00:00"]),
    ("59 23 31 12 *", "2026-12-31 23:58", ["2026-12-31 23:59", "2027-12-31 23:59"]),
    ("  0   0 * *\t* ", "2026-03-01 00:00", ["2026-03-02 00:00", "2026-03-03 00:00"]),
    ("@hourly", "2026-03-01 10:00", ["2026-03-01 11:00", "2026-03-01 12:00"]),
    ("@daily", "2026-03-01 10:00", ["2026-03-02 00:00", "2026-03-03 00:00"]),
    ("@midnight", "2026-03-01 10:00", ["2026-03-02 00:00", "2026-03-03 00:00"]),
    ("@weekly", "2026-03-01 10:00", ["2026-03-08 00:00", "2026-03-15 00:00"]),
    ("@Monthly", "2026-03-01 10:00", ["2026-04-01 00:00", "2026-05-01 00:00"]),
    ("@yearly", "2026-03-01 10:00", ["2027-01-01 00:00", "2028-01-01 00:00"]),
    ("@annually", "2026-03-01 10:00", ["2027-01-01 00:00", "2028-01-01 00:00"]),
)
def test_cron_expression_due_times(text: str, start: str, expected: list[str]) -> None:
    assert due(text, start, len(expected)) == expected


def test_next_moment_is_strictly_later_also_before_1970() -> None:
    cron = CronExpression.parse("0 * * * *")
    hour = ms("2026-03-01 10:00")
    assert cron.next_after(hour - 1) == hour
    assert cron.next_after(hour) == hour + 3_600_000
    assert cron.next_after(hour + 1) == hour + 3_600_000
    assert CronExpression.parse("@hourly").next_after(-1) == 0
    assert CronExpression.parse("@hourly").next_after(-3_600_001) == -3_600_000
    cron = CronExpression.parse("0 9 * * mon", BERLIN)
    assert (cron.text, cron.timezone) == ("0 9 * * mon", BERLIN)
    assert cron == CronExpression.parse("0 9 * * mon", BERLIN)
    assert cron != CronExpression.parse("0 9 * * mon")


# Days, as Vixie's cron takes them. 2026-03-13 is a Friday.


@each(
    ("13 * fri", ["06", "13", "20", "27"]),  # Either.
    ("13,14 * fri", ["06", "13", "14", "20", "27"]),
    ("* * fri", ["06", "13", "20", "27"]),
    ("13 * *", ["13"]),
    ("*/6 * fri", ["13"]),  # A star in front, with a step: both. 1, 7, 13, 19, 25, 31.
    ("13,14 * */5", ["13"]),  # The same for the weekday: Sunday and Friday.
    ("*/6 * *", ["01", "07", "13", "19", "25", "31"]),
    ("1-31 * fri", [f"{day:02}" for day in range(1, 32)]),  # No star: every day fits.
)
def test_day_of_month_and_day_of_week(days: str, expected: list[str]) -> None:
    times = due(f"0 0 {days}", "2026-02-28 23:59", len(expected) + 1)
    assert [moment[8:10] for moment in times[:-1]] == expected
    assert times[0].startswith("2026-03") and not times[-1].startswith("2026-03")


def test_rare_days_are_found() -> None:
    assert due("0 0 30 2 mon", "2026-01-15", 2) == ["2026-02-02 00:00", "2026-02-09 00:00"]
    # A 29th of February on a Sunday, across 2100, which is no leap year.
    assert due("0 0 29 2 */7", "2026-01-01", 4) == [
        "2032-02-29 00:00",
        "2060-02-29 00:00",
        "2088-02-29 00:00",
        "2128-02-29 00:00",
    ]


BERLIN = "Europe/Berlin"  # 2026: forward on 29 March 02:00, back on 25 October 03:00.


def test_times_in_a_gap_are_due_once_at_its_end() -> None:
    assert due("0 9 * * *", "2026-03-28 00:00", 2, BERLIN) == [
        "2026-03-28 09:00:00+01:00",
        "2026-03-29 09:00:00+02:00",
    ]
    assert due("30 2 * * *", "2026-03-28 00:00", 3, BERLIN) == [
        "2026-03-28 02:30:00+01:00",
        "2026-03-29 03:00:00+02:00",
        "2026-03-30 02:30:00+02:00",
    ]
    assert due("10,20,30 2,3 * * *", "2026-03-29 00:00", 3, BERLIN) == [
        "2026-03-29 03:00:00+02:00",
        "2026-03-29 03:10:00+02:00",
        "2026-03-29 03:20:00+02:00",
    ]
    assert due("0 * * * *", "2026-03-29 00:30", 3, BERLIN) == [
        "2026-03-29 01:00:00+01:00",
        "2026-03-29 03:00:00+02:00",
        "2026-03-29 04:00:00+02:00",
    ]
    # Lord Howe Island, forward on 4 October 2026 from 02:00 to 02:30.
    assert due("15 2 * * *", "2026-10-03 12:00", 2, "Australia/Lord_Howe") == [
        "2026-10-04 02:30:00+11:00",
        "2026-10-05 02:15:00+11:00",
    ]
    # Cairo, forward on 24 April 2026 from 00:00 to 01:00.
    assert due("@daily", "2026-04-23 12:00", 2, "Africa/Cairo") == [
        "2026-04-24 01:00:00+03:00",
        "2026-04-25 00:00:00+03:00",
    ]
    # Samoa changed sides of the date line: there was no 30 December 2011.
    assert due("0 */8 30,31 12 *", "2011-12-29 12:00", 3, "Pacific/Apia") == [
        "2011-12-31 00:00:00+14:00",
        "2011-12-31 08:00:00+14:00",
        "2011-12-31 16:00:00+14:00",
    ]
    # Monrovia, forward on 7 January 1972 from 00:00:00 to 00:44:30.
    assert due("10 0 * * *", "1972-01-06 12:00", 2, "Africa/Monrovia") == [
        "1972-01-07 00:44:30+00:00",
        "1972-01-08 00:10:00+00:00",
    ]


def test_times_in_an_overlap_are_due_once() -> None:
    assert due("30 2 * * *", "2026-10-25 00:00", 2, BERLIN) == [
        "2026-10-25 02:30:00+02:00",
        "2026-10-26 02:30:00+01:00",
    ]
    assert due("*/30 * * * *", "2026-10-25 01:59", 4, BERLIN) == [
        "2026-10-25 02:00:00+02:00",
        "2026-10-25 02:30:00+02:00",
        "2026-10-25 03:00:00+01:00",
        "2026-10-25 03:30:00+01:00",
    ]
    for start in ("2026-10-25 02:40+02:00", "2026-10-25 02:10+01:00"):
        assert due("30 2 * * *", start, 1, BERLIN) == ["2026-10-26 02:30:00+01:00"], start


@each(
    ("60 * * * *", ["minute", "'60'", "0 to 59"]),
    ("* 24 * * *", ["hour", "'24'", "0 to 23"]),
    ("* * 0 * *", ["day of month", "'0'", "1 to 31"]),
    ("* * * 13 *", ["month", "'13'", "1 to 12 or jan to dec"]),
    ("* * * foo *", ["month", "'foo'", "jan to dec"]),
    ("* * * * 8", ["day of week", "'8'", "0 to 7 or sun to sat"]),
    ("mon * * * *", ["minute", "'mon'", "0 to 59"]),
    ("1,,2 * * * *", ["minute", "'1,,2'", "''", "0 to 59"]),
    ("-5 * * * *", ["minute", "'-5'", "0 to 59"]),
    ("5- * * * *", ["minute", "'5-'", "0 to 59"]),
    ("1-2-3 * * * *", ["minute", "'2-3'", "0 to 59"]),
    ("*/0 * * * *", ["minute", "step '0'", "1 to 59"]),
    ("*/90 * * * *", ["minute", "step '90'", "1 to 59"]),
    ("*/ * * * *", ["minute", "step ''", "1 to 59"]),
    ("*/5/5 * * * *", ["minute", "step '5/5'", "1 to 59"]),
    ("*5 * * * *", ["minute", "'*5'", "0 to 59"]),
    ("+5 * * * *", ["minute", "'+5'"]),
    ("1_0 * * * *", ["minute", "'1_0'"]),
    ("٣ * * * *", ["minute", "0 to 59"]),
    ("² * * * *", ["minute", "0 to 59"]),
    (f"{'9' * 5000} * * * *", ["minute", "0 to 59"]),
    ("? * * * *", ["minute", "'?'"]),
    ("* 22-2 * * *", ["hour", "'22-2'", "22-23,0-2"]),
    ("* * * * fri-tue", ["day of week", "'fri-tue'", "5-7,0-2"]),
    ("0 0 30 2 *", ["day of month", "'30'", "'2'", "1 to 29"]),
    ("0 0 31 2,4,jun,9,11 *", ["day of month", "'31'", "1 to 30"]),
    ("0 0 30-31 feb */2", ["day of month", "'30-31'", "1 to 29"]),
    ("* * * *", ["4 fields", "minute, hour, day of month, month, day of week"]),
    ("0 * * * * *", ["6 fields", "five"]),
    ("", ["0 fields", "five"]),
    ("@reboot", ["'@reboot'", "@daily", "@hourly"]),
)
def test_invalid_cron_expression_error_names_valid_values(text: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        CronExpression.parse(text)
    message = str(caught.value)
    assert [word for word in words if word not in message] == []
    assert len(message) < 300


def test_calendar_ends_and_unknown_zones_are_refused() -> None:
    for zone in ("Mars/Olympus", "", "Europe", "../etc/passwd", "/etc", "a\0b"):
        with naming(zone), pytest.raises(ConfigError, match=r"time zone .* is unknown"):
            CronExpression.parse("@daily", zone)
    for zone in ("UTC", "Pacific/Apia", "America/New_York"):
        cron = CronExpression.parse("0 0 29 2 *", zone)
        assert iso(cron.next_after(ms("9995-01-01"))).startswith("9996-02-2"), zone
        with (
            naming(zone),
            pytest.raises(UsageError, match=r"'0 0 29 2 \*' cannot be due .* 1 to 9999"),
        ):
            cron.next_after(ms("9996-03-01"))
    for zone, edge in product(
        ["UTC", "Pacific/Apia", "America/New_York"],
        ["0001-01-01 00:00+00:00", "9999-12-31 23:59+00:00"],
    ):
        at = ms(edge)
        try:
            assert CronExpression.parse("* * * * *", zone).next_after(at) > at, (zone, edge)
        except UsageError as error:
            assert str(at) in str(error), (zone, edge)
    for at in (10**30, -(10**30)):
        with naming(at), pytest.raises(UsageError, match="cannot be due"):
            CronExpression.parse("@daily").next_after(at)


@pytest.fixture
def no_database(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine without any database of zones."""
    for package in ("tzdata", "tzdata.zoneinfo", "tzdata.zoneinfo.Europe"):
        monkeypatch.setitem(sys.modules, package, None)
    path = zoneinfo.TZPATH
    zoneinfo.reset_tzpath([])
    ZoneInfo.clear_cache()
    yield
    zoneinfo.reset_tzpath(path)


@pytest.mark.usefixtures("no_database")
def test_without_a_database_of_zones_there_is_still_utc() -> None:
    assert CronExpression.parse("@hourly").next_after(0) == 3_600_000
    with pytest.raises(ConfigError, match="install the package tzdata"):
        CronExpression.parse("@hourly", BERLIN)
