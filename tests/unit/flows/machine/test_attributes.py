"""Search attributes: which a flow may have, and which conditions find it."""

from typing import Any

import pytest

from postroad.core.errors import ConfigError, UsageError
from postroad.flows import FlowContext, FlowStatus, flow
from postroad.flows.machine.attributes import AttributeValue, merge_attributes, parse_conditions
from postroad.flows.machine.events import FlowCancelRequested, FlowLoaded, SignalReceived
from postroad.flows.machine.values import encode_value
from tests.support.cases import each
from tests.support.flows.driven import Driven, begun


def test_changes_are_merged_and_none_removes() -> None:
    attributes: dict[str, AttributeValue] = {"customer": "ann", "amount": 5}
    merged = merge_attributes(
        attributes, {"amount": 7.5, "customer": None, "is_new": True, "no": None}
    )
    assert merged == {"amount": 7.5, "is_new": True}
    assert attributes == {"customer": "ann", "amount": 5}
    assert merge_attributes({}, {"a": "half: \ud800", "é-1.b": "x" * 200}) == {
        "a": "half: ?",
        "é-1.b": "x" * 200,
    }
    full: dict[str, AttributeValue] = {f"n{number}": number for number in range(20)}
    assert len(merge_attributes(full, {"n0": None, "other": 1})) == 20


@each(
    ({"a b": 1}, "cannot set attribute 'a b': a name has up to 64 letters"),
    ({"": 1}, "a name has up to 64 letters"),
    ({"1st": 1}, "starts with a letter or '_'"),
    ({"x" * 65: 1}, "a name has up to 64 letters"),
    ({"a": [1]}, r"'a': \[1\] is no str, int, float, bool or None"),
    ({"a": FlowStatus.RUNNING}, "is no str, int, float, bool or None"),
    ({"a": ["x" * 300]}, r"'a': \['x{78} is no str"),
    ({"a": "x" * 201}, "'a': 'x{79} has 201 characters, and 200 is the limit"),
    ({"a": 1 << 63}, "'a': 9223372036854775808 does not fit in 64 bits"),
    ({"a": float("nan")}, "'a': nan is no finite number"),
    ({f"n{number}": 1 for number in range(21)}, "the flow would have 21, and 20 is the limit"),
    ({f"n{number}": "ü" * 200 for number in range(11)}, "would take 4468 bytes, and 4096 is the"),
)
def test_what_cannot_be_set(changes: Any, expected_text: str) -> None:
    with pytest.raises(UsageError, match=expected_text):
        merge_attributes({}, changes)


ANN: dict[str, AttributeValue] = {
    "customer": "ann",
    "amount": 5,
    "rate": 0.5,
    "is_new": True,
    "zip": "0815",
    "day": "2026-11-16",
    "word": "null",
}


@each(
    ("customer=ann", True),
    (' customer = "ann" ', True),
    ("customer=anna", False),
    ("customer!=ann", False),
    ("customer!=bob", True),
    ("customer>a", True),
    ("customer>=5", True),
    ("amount=5", True),
    ("amount=5.0", True),
    ('amount="5"', False),
    ("amount>=5", True),
    ("amount>5", False),
    ("amount<5.5", True),
    ("amount<=4", False),
    ("amount<x", False),
    ("amount=true", False),
    ("rate<1", True),
    ("is_new=true", True),
    ("is_new=1", False),
    ("is_new!=1", True),
    ("is_new>0", False),
    ("zip=0815", True),
    ('zip="0815"', True),
    ("zip=815", False),
    ("day>=2026-11-01", True),
    ("day<2026-11-01", False),
    ("other=null", True),
    ("other!=null", False),
    ("other!=x", True),
    ("other<5", False),
    ("customer=null", False),
    ("is_new!=null", True),
    ("word=null", False),
    ('word="null"', True),
    ("customer=", False),
    ("customer=[1]", False),
)
def test_conditions(text: str, is_met: bool) -> None:
    (condition,) = parse_conditions([text])
    assert condition.matches(ANN) is is_met


@each("", "customer", "=ann", "customer==ann", "amount=>5", "a b=5", "1=1")
def test_malformed_conditions(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_conditions(["a=1", text])
    assert str(caught.value) == (
        f"where={text!r} must be a name, one of = != < <= > >= and a value, as in "
        "customer=ann or 'amount>=5'"
    )


@each(("a<null", "than null"), ("a>=", "than an empty text"))
def test_nothing_is_less_than_nothing(text: str, expected_text: str) -> None:
    with pytest.raises(ConfigError, match=f"{expected_text}; compare with = or !=, as in a!=null"):
        parse_conditions([text])


# With the code of a flow.


@flow
async def rename_all(ctx: FlowContext, rounds: int) -> None:
    """Has twenty attributes at a time, and others in each round."""
    for number in range(rounds):
        ctx.set_attributes(**{f"n{number}_{index}": index for index in range(20)})
        await ctx.wait_for_signal("next", bool)
        ctx.set_attributes(**{f"n{number}_{index}": None for index in range(20)})
    ctx.set_attributes(rounds=rounds)


def go(driven: Driven) -> Any:
    return driven.tell(SignalReceived("next", encode_value(True, "it")))


def test_replay_does_not_start_from_the_last_attributes() -> None:
    driven = begun(rename_all, 3)
    for number in (1, 2):
        assert go(driven).is_state_changed
        assert not driven.load().is_state_changed
        assert driven.head.attributes == {f"n{number}_{index}": index for index in range(20)}
    go(driven)
    assert (driven.head.status, driven.head.attributes) == (FlowStatus.COMPLETED, {"rounds": 3})


def test_attributes_of_earlier_runs_are_kept() -> None:
    @flow
    async def go_round(ctx: FlowContext, number: int = 0) -> None:
        ctx.set_attributes(**{f"n{number}": number, f"n{number - 2}": None})
        await ctx.wait_for_signal("next", bool)
        ctx.set_attributes(last=number)
        await ctx.wait_for_signal("next", bool)
        ctx.continue_as_new(number + 1)

    driven = begun(go_round)
    for number in range(5):
        earlier = {f"n{number - 1}": number - 1, "last": number - 1} if number else {}
        assert driven.head.attributes == {**earlier, f"n{number}": number}
        go(driven)
        assert not driven.load().is_state_changed
        assert driven.head.attributes == {**earlier, f"n{number}": number, "last": number}
        go(driven)
        driven.load()


def test_a_flow_that_cannot_be_replayed_keeps_its_attributes() -> None:
    def code(name: str) -> Any:
        @flow(name="changing")
        async def changing(ctx: FlowContext) -> None:
            ctx.set_attributes(stage="first", customer="ann")
            await ctx.wait_for_signal(name, bool)
            ctx.set_attributes(stage="second")
            await ctx.wait_for_signal("next", bool)

        return changing

    driven = begun(code("next"))
    go(driven)
    changed = Driven(code("other"), stored=driven.stored)
    changed.tell(FlowLoaded())
    assert changed.head.status is FlowStatus.PARKED
    assert changed.head.attributes == {"stage": "second", "customer": "ann"}


def test_attributes_set_when_a_flow_is_cancelled() -> None:
    @flow
    async def careful(ctx: FlowContext) -> None:
        try:
            await ctx.wait_for_signal("next", bool)
        finally:
            ctx.set_attributes(is_undone=True)

    driven = begun(careful)
    assert driven.tell(FlowCancelRequested("too late")).is_ended
    assert driven.head.attributes == {"is_undone": True}


def test_only_the_code_of_the_flow_sets_attributes() -> None:
    contexts: list[FlowContext] = []

    @flow
    async def wait(ctx: FlowContext) -> None:
        contexts.append(ctx)
        await ctx.wait_for_signal("next", bool)

    @flow
    async def overdo(ctx: FlowContext) -> None:
        ctx.set_attributes(note="x" * 201)

    begun(wait)
    with pytest.raises(UsageError, match="belongs to the code of the flow: set attributes there"):
        contexts[0].set_attributes(a=1)
    assert "cannot set attribute 'note'" in begun(overdo).trouble
