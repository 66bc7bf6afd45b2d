"""Windows and triggers are what a slow model says, whoever counted what and when."""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any, NamedTuple, TypeAlias

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from postroad.pipeline.job import Refinement, Segment, Trigger, TriggerType, Window, WindowType
from postroad.pipeline.windows import (
    CompiledWindows,
    Extent,
    JobWindowDelta,
    WindowDeltaBuilder,
)
from postroad.pipeline.windows.aggregations import BUILT_IN, Aggregation
from postroad.pipeline.windows.assigners import assignment_of
from postroad.pipeline.windows.panes import Pane, decode_row
from tests.support.pipeline.seen_windows import SeenWindowState, decode_delta, encode_delta
from tests.support.pipeline.window_model import Emission, Model, is_punctuation

TASK = "gathering"

Event: TypeAlias = tuple[str, float, int | float]

TIMES = st.integers(-40, 40).map(lambda tenths: tenths / 10) | st.integers(-10, 10)
VALUES = st.integers(-5, 5) | st.sampled_from([0.1, 0.2, 0.3, -0.0, 1e16, -1e16, 1.5, 2.0**70])
EVENTS: st.SearchStrategy[Event] = st.tuples(st.sampled_from(["a", "b"]), TIMES, VALUES)

LENGTHS = st.sampled_from([0.1, 0.3, 1.0, 2.0, 2.5, 7.0])


@st.composite
def windows(draw: st.DrawFn) -> Window:
    return Window(
        name="w",
        task=TASK,
        type=draw(st.sampled_from(WindowType)),
        aggregation=draw(st.sampled_from(sorted(BUILT_IN))),
        key="value",
        time_key="at",
        range_s=draw(LENGTHS),
        slide_s=draw(st.sampled_from([0.5, 1.0, 3.0])),
        gap_s=draw(LENGTHS),
        allowed_lateness_s=draw(st.none() | st.sampled_from([0.0, 1.0, 3.0])),
    )


TRIGGERS = st.lists(
    st.builds(
        Trigger,
        window=st.just("w"),
        on=st.sampled_from(TriggerType),
        threshold=st.sampled_from([1.0, 2.0, 3.0]),
        predicate=st.just("is_punctuation"),
        refinement=st.sampled_from(Refinement),
    ),
    min_size=1,
    max_size=4,
)

DRAINED = Trigger(window="w", on=TriggerType.DRAINED)


class Batch(NamedTuple):
    """What comes together, cut into parts, and how long after the batch before."""

    events: list[Event]
    parts: int
    seed: int
    after_s: float
    is_timed: bool


BATCHES = st.lists(
    st.builds(
        Batch,
        st.lists(EVENTS, max_size=8),
        st.integers(1, 4),
        st.integers(0, 2**32),
        st.sampled_from([0.0, 0.5, 1.0, 4.0]),
        st.booleans(),
    ),
    max_size=8,
)


def find(path: str) -> Any:
    assert path == "is_punctuation"
    return lambda segment: is_punctuation(segment["value"])


def plan_of(window: Window, triggers: list[Trigger]) -> CompiledWindows:
    return CompiledWindows([window], triggers, find)


def as_segment(event: Event) -> Segment:
    return {"at": event[1], "value": event[2]}


def order_of(event: Event) -> bytes:
    """Tokens that put collected numbers in their order."""
    return int(Fraction(event[2]) * 2**60 + 2**200).to_bytes(32)


def gathered(plan: CompiledWindows, events: list[Event]) -> WindowDeltaBuilder:
    maker = WindowDeltaBuilder(plan)
    for event in events:
        maker.add(TASK, event[0], as_segment(event), order=order_of(event))
    return maker


def in_parts(plan: CompiledWindows, events: list[Event], parts: int, seed: int) -> JobWindowDelta:
    """The delta of events that are counted in several places and put together in some order."""
    chance = random.Random(seed)
    shares: list[list[Event]] = [[] for _ in range(parts)]
    for event in chance.sample(events, len(events)):
        chance.choice(shares).append(event)
    makers = [gathered(plan, share) for share in shares]
    while len(makers) > 1:
        chance.shuffle(makers)
        encoded = encode_delta(makers.pop().delta)
        makers[0].merge(decode_delta(encoded))
    return makers[0].delta


def told(extents: list[Extent]) -> list[Emission]:
    return sorted(
        (
            Emission(one.group, one.lower, one.upper, one.value, one.segments, one.trigger_index)
            for one in extents
        ),
        key=lambda emission: emission.place,
    )


def expected(emissions: list[Emission]) -> list[Emission]:
    return sorted(emissions, key=lambda emission: emission.place)


class Stored:
    """A state that is loaded from its rows before whatever happens, beside one that is not."""

    def __init__(self, plan: CompiledWindows) -> None:
        self._plan = plan
        self.state = SeenWindowState(plan)
        self._rows: dict[bytes, bytes] = {}

    def _copy(self) -> SeenWindowState:
        rows = list(self._rows.items())
        random.Random(len(rows)).shuffle(rows)
        return SeenWindowState(self._plan, rows)

    def _settle(self, copy: SeenWindowState) -> None:
        changes = self.state.take_changes()
        assert copy.take_changes() == changes
        for key, value in changes.items():
            if value is None:
                self._rows.pop(key, None)
            else:
                self._rows[key] = value
        assert self.state.take_changes() == {}

    def apply(self, delta: JobWindowDelta, now_s: float) -> list[Extent]:
        copy, encoded = self._copy(), encode_delta(delta)
        extents = self.state.apply(delta, now_s)
        assert encode_delta(delta) == encoded, "it was only read"
        assert copy.apply(decode_delta(encoded), now_s) == extents
        self._settle(copy)
        return extents

    def on_time(self, now_s: float) -> list[Extent]:
        copy = self._copy()
        extents = self.state.on_time(now_s)
        assert copy.on_time(now_s) == extents
        assert copy.next_timer_s == self.state.next_timer_s
        self._settle(copy)
        return extents

    def on_drained(self) -> list[Extent]:
        copy = self._copy()
        extents = self.state.on_drained()
        assert copy.on_drained() == extents
        self._settle(copy)
        return extents

    def panes(self) -> list[Pane]:
        rows = [decode_row(key, value) for key, value in self._rows.items()]
        return [row.content for row in rows if isinstance(row.content, Pane)]


@given(windows(), TRIGGERS, BATCHES)
def test_emissions_are_those_of_the_model(
    window: Window, triggers: list[Trigger], batches: list[Batch]
) -> None:
    check_emissions(window, triggers, batches)


# Sessions that grow, meet, end and are forgotten, and not much else.
SESSIONS = st.builds(
    Window,
    name=st.just("w"),
    task=st.just(TASK),
    type=st.just(WindowType.SESSION),
    aggregation=st.just("count"),
    time_key=st.just("at"),
    gap_s=st.sampled_from([2.0, 3.0]),
    allowed_lateness_s=st.none() | st.just(0.0),
)
SESSION_BATCHES = st.lists(
    st.builds(
        Batch,
        st.lists(
            st.tuples(st.sampled_from("aaab"), st.integers(0, 10), st.integers(2, 3)), max_size=4
        ),
        st.integers(1, 2),
        st.integers(0, 2**32),
        st.just(1.0),
        st.booleans(),
    ),
    min_size=3,
    max_size=10,
)


@given(SESSIONS, TRIGGERS, SESSION_BATCHES)
def test_emissions_of_sessions_are_those_of_the_model(
    window: Window, triggers: list[Trigger], batches: list[Batch]
) -> None:
    check_emissions(window, triggers, batches)


def check_emissions(window: Window, triggers: list[Trigger], batches: list[Batch]) -> None:
    plan = plan_of(window, triggers)
    stored, model, now_s = Stored(plan), Model(window, triggers), 100.0
    emitted: list[Extent] = []
    for batch in batches:
        now_s += batch.after_s
        if batch.is_timed:
            emitted += (extents := stored.on_time(now_s))
            assert told(extents) == expected(model.on_time(now_s))
        delta = in_parts(plan, batch.events, batch.parts, batch.seed)
        emitted += (extents := stored.apply(delta, now_s))
        assert told(extents) == expected(model.apply(batch.events, now_s))
        assert stored.state.late("w") == model.late
        assert len(stored.state) == len(stored.panes())
    for _ in range(2):
        emitted += (extents := stored.on_drained())
        assert told(extents) == expected(model.on_drained())
    check_numbers(window, emitted)


def check_numbers(window: Window, emitted: list[Extent]) -> None:
    """Emissions of one place have rising numbers, which have no gaps but in sessions."""
    numbers: dict[tuple[Any, ...], list[int]] = {}
    for extent in emitted:
        numbers.setdefault((extent.group, extent.lower), []).append(extent.firing)
    for found in numbers.values():
        assert found == sorted(set(found))
        if window.type is not WindowType.SESSION:
            assert found == list(range(1, len(found) + 1))


@given(windows(), st.lists(EVENTS, max_size=20), st.integers(1, 5), st.integers(0, 2**32))
def test_a_delta_is_the_same_however_it_was_put_together(
    window: Window, events: list[Event], parts: int, seed: int
) -> None:
    plan = plan_of(
        window, [Trigger(window="w", on=TriggerType.PUNCTUATION, predicate="is_punctuation")]
    )
    whole = gathered(plan, events).delta
    assert encode_delta(in_parts(plan, events, parts, seed)) == encode_delta(whole)
    assert decode_delta(encode_delta(whole)) == whole


@given(windows(), st.lists(EVENTS, max_size=20), st.integers(1, 5), st.integers(0, 2**32))
def test_panes_are_the_same_however_batches_are_cut(
    window: Window, events: list[Event], batches: int, seed: int
) -> None:
    plan = plan_of(msgspec.structs.replace(window, allowed_lateness_s=None), [DRAINED])
    chance = random.Random(seed)
    at_once, bit_by_bit = SeenWindowState(plan), SeenWindowState(plan)
    at_once.apply(gathered(plan, events).delta, 0.0)
    numbers = [chance.randrange(batches) for _ in events]
    for batch in range(batches):
        part = [event for event, number in zip(events, numbers, strict=True) if number == batch]
        bit_by_bit.apply(gathered(plan, part).delta, 0.0)
    rows = {key: value for key, value in bit_by_bit.take_changes().items() if value is not None}
    assert rows == at_once.take_changes()
    assert bit_by_bit.on_drained() == at_once.on_drained()


def state_of(aggregation: Aggregation, events: list[Event]) -> Any:
    state = aggregation.init()
    for event in events:
        state = aggregation.add_in_order(state, as_segment(event), order_of(event))
    return state


def stored(state: Any) -> Any:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(state))


@given(st.sampled_from(sorted(BUILT_IN)), *[st.lists(EVENTS, max_size=12)] * 3)
def test_states_merge_in_any_order(
    name: str, left: list[Event], middle: list[Event], right: list[Event]
) -> None:
    aggregation = BUILT_IN[name]("value")

    def of(events: list[Event]) -> Any:
        return state_of(aggregation, events)

    merge, whole = aggregation.merge, of(left + middle + right)
    assert stored(whole) == whole
    assert merge(merge(of(left), of(middle)), of(right)) == whole
    assert merge(of(left), merge(of(middle), of(right))) == whole
    assert merge(of(right), merge(of(left), of(middle))) == whole
    assert merge(aggregation.init(), of(left)) == merge(of(left), aggregation.init()) == of(left)


@given(windows(), TIMES)
def test_extents_contain_their_segments(window: Window, time_s: float) -> None:
    assignment = assignment_of(window)
    lowers = assignment.lowers(float(time_s))
    assert lowers == sorted(set(lowers))
    assert lowers or window.type is WindowType.SLIDING
    for lower in lowers:
        bound = time_s if window.type is WindowType.GLOBAL else lower
        assert bound <= time_s < assignment.upper(lower, float(time_s))
