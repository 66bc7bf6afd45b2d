"""Cron expressions against a watchman who looks at the clock on the wall every minute."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st

from postroad.core.errors import ConfigError
from postroad.flows.schedules.cron import CronExpression

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
MONTHS = ["", "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
WEEKDAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]

# Zones, each with moments around which its clock changes.
CHANGES = [
    ("Europe/Berlin", "2026-03-29 01:00"),
    ("Europe/Berlin", "2026-10-25 01:00"),
    ("America/New_York", "2026-03-08 07:00"),
    ("America/New_York", "2026-11-01 06:00"),
    ("Australia/Lord_Howe", "2026-10-03 15:30"),
    ("Australia/Lord_Howe", "2026-04-04 15:00"),
    ("Africa/Cairo", "2026-04-23 22:00"),
    ("Africa/Cairo", "2026-10-29 21:00"),
    ("Pacific/Apia", "2011-12-30 10:00"),
    ("America/Sao_Paulo", "2018-11-04 03:00"),
    ("Asia/Kolkata", "2026-02-28 18:30"),
    ("UTC", "2028-02-29 00:00"),
]


class Field(NamedTuple):
    """A field as it is written, and the values it stands for."""

    text: str
    values: frozenset[int]


class Fields(NamedTuple):
    minute: Field
    hour: Field
    day: Field
    month: Field
    weekday: Field

    @property
    def text(self) -> str:
        return " ".join(field.text for field in self)

    def has_date(self, day: date) -> bool:
        by_number = day.day in self.day.values
        by_weekday = bool({day.isoweekday(), day.isoweekday() % 7} & self.weekday.values)
        has_star = self.day.text[0] == "*" or self.weekday.text[0] == "*"
        fits = (by_number and by_weekday) if has_star else (by_number or by_weekday)
        return fits and day.month in self.month.values

    def has_time(self, wall: datetime) -> bool:
        is_time = wall.minute in self.minute.values and wall.hour in self.hour.values
        return is_time and self.has_date(wall.date())


@st.composite
def parts(draw: st.DrawFn, first: int, last: int, names: list[str]) -> Field:
    """One of a list's parts: a value, a range or a star, some with a step."""
    start = draw(st.integers(first, last))
    end = draw(st.integers(start, last))
    step = draw(st.integers(1, last))
    by_name = start < len(names) and draw(st.booleans())
    word = draw(st.sampled_from([str.lower, str.upper, str.title]))(names[start]) if by_name else ""
    low = word or str(start)
    return draw(
        st.sampled_from(
            [
                Field(low, frozenset([start])),
                Field(f"{low}-{end}", frozenset(range(start, end + 1))),
                Field(f"{low}-{end}/{step}", frozenset(range(start, end + 1, step))),
                Field(f"{low}/{step}", frozenset(range(start, last + 1, step))),
                Field(f"*/{step}", frozenset(range(first, last + 1, step))),
            ]
        )
    )


@st.composite
def fields(draw: st.DrawFn, first: int, last: int, names: list[str] | None = None) -> Field:
    if draw(st.booleans()):
        return Field("*", frozenset(range(first, last + 1)))
    chosen = draw(st.lists(parts(first, last, names or []), min_size=1, max_size=3))
    texts = ",".join(part.text for part in chosen)
    return Field(texts, frozenset().union(*(part.values for part in chosen)))


expressions = st.builds(
    Fields,
    minute=fields(0, 59),
    hour=fields(0, 23),
    day=fields(1, 31),
    month=fields(1, 12, MONTHS),
    weekday=fields(0, 7, WEEKDAYS),
)


def first_date(expression: Fields, start: date) -> date | None:
    """Look at the calendar every day; after 41 years each date was there on each weekday."""
    days = (start + timedelta(days=number) for number in range(41 * 366))
    return next((day for day in days if expression.has_date(day)), None)


def watch(expression: Fields, clock: ZoneInfo, start: datetime, minutes: int) -> Iterator[datetime]:
    """Look at the wall every minute, and name the moments at which something is due.

    What was skipped since the last look is due now, and what was seen before is not due again.
    """
    moment = start.replace(second=0, microsecond=0) - timedelta(hours=3)
    latest = moment.astimezone(clock).replace(tzinfo=None)
    for _ in range(3 * 60 + minutes):
        moment += MINUTE
        wall = moment.astimezone(clock).replace(tzinfo=None)
        new = [latest + MINUTE * number for number in range(1, (wall - latest) // MINUTE + 1)]
        latest = max(wall, latest)
        if moment > start and any(expression.has_time(each) for each in new):
            yield moment


def to_ms(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(milliseconds=1)


@given(
    expression=expressions,
    change=st.sampled_from(CHANGES),
    offset_ms=st.integers(-4 * 3_600_000, 2 * 3_600_000),
)
def test_it_is_due_when_the_watchman_says(
    expression: Fields, change: tuple[str, str], offset_ms: int
) -> None:
    zone, at = change
    start = datetime.fromisoformat(at).replace(tzinfo=UTC) + timedelta(milliseconds=offset_ms)
    minutes = 5 * 60
    try:
        cron = CronExpression.parse(expression.text, zone)
    except ConfigError:
        assert first_date(expression, start.date()) is None
        return
    expected = [to_ms(moment) for moment in watch(expression, ZoneInfo(zone), start, minutes)]
    found = [cron.next_after(to_ms(start))]
    while len(found) <= len(expected) and found[-1] <= to_ms(start + MINUTE * minutes):
        found.append(cron.next_after(found[-1]))
    assert found[:-1] == expected[: len(found) - 1]
    assert len(found) == len(expected) + 1
    assert found[-1] > to_ms(start.replace(second=0, microsecond=0) + MINUTE * minutes)


@given(expression=expressions, start=st.dates(date(1900, 1, 1), date(2400, 1, 1)))
def test_its_date_is_the_next_of_the_calendar_or_it_is_refused(
    expression: Fields, start: date
) -> None:
    midnight = Field("0", frozenset([0]))
    expression = expression._replace(minute=midnight, hour=midnight)
    expected = first_date(expression, start)
    before = datetime(start.year, start.month, start.day, tzinfo=UTC) - MINUTE
    try:
        found = CronExpression.parse(expression.text).next_after(to_ms(before))
    except ConfigError:
        assert expected is None
    else:
        assert (EPOCH + timedelta(milliseconds=found)).date() == expected


@given(text=st.text("0123456789*/-,@ adefjmnoru\n", max_size=20), zone=st.text(max_size=8))
def test_any_text_is_a_schedule_or_a_wrong_setting(text: str, zone: str) -> None:
    for each in (text, f"{text} * * * *", f"0 0 {text} 2 *"):
        try:
            assert CronExpression.parse(each).next_after(0) > 0
        except ConfigError as error:
            assert "cron expression" in str(error)
    try:
        assert CronExpression.parse("@daily", zone).next_after(0) > 0
    except ConfigError as error:
        assert "zone" in str(error)
