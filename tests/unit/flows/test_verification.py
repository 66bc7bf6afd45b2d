"""Recorded histories with the code of today: which flows could go on with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from postroad.flows import FlowContext, FlowDefinition, FlowSession, FlowStatus, flow, responder
from postroad.flows.definition import FlowRegistry
from postroad.flows.history_files import ExportedFlow, FlowHeader, HistoryStep
from postroad.flows.machine import values
from postroad.flows.machine.history import CommandKind, HistoryEntry, encode_history_entry
from postroad.flows.machine.state import FlowState, InitiatingSession, format_flow_id
from postroad.flows.sessions.messages import SessionKey
from postroad.flows.verification import FlowReport, FlowVerifier, ReplayResult
from tests.support.cases import each

called: list[str] = []


def reserve(room: int) -> str:
    called.append("reserve")
    return f"room {room}"


def insure(booking: str) -> str:
    called.append("insure")
    return booking


def charge(cents: int) -> None:
    called.append("charge")


def entry(number: int, function: Callable[..., Any], argument: object, value: object) -> Any:
    return HistoryEntry(
        position=(number,),
        kind=CommandKind.STEP,
        name=function.__name__,
        digest=values.digest_arguments((argument,), {}),
        at_ms=number,
        value=values.encode_value(value, "the value"),
    )


BOOKED = [entry(0, reserve, 12, "room 12"), entry(1, charge, 9_900, None)]


def export(
    entries: list[HistoryEntry] = BOOKED,
    status: FlowStatus = FlowStatus.RUNNING,
    arguments: tuple[Any, ...] = (12,),
    **facts: Any,
) -> ExportedFlow:
    state = FlowState(
        id=7,
        name="book",
        version=1,
        status=status,
        seed=b"seed",
        started_ms=1,
        arguments=values.encode_value((arguments, {}), "arguments"),
        **facts,
    )
    steps = [
        HistoryStep(each_entry.label, encode_history_entry(each_entry)) for each_entry in entries
    ]
    header = FlowHeader(
        id=format_flow_id(7),
        name="book",
        version=1,
        status=status.value,
        steps=len(steps),
        state=msgspec.msgpack.encode(state),
    )
    return ExportedFlow(header, steps)


def verify(exported: ExportedFlow, *code: FlowDefinition[..., Any]) -> FlowReport:
    async def replay() -> FlowReport:
        return FlowVerifier(FlowRegistry(code)).verify(exported)

    called.clear()
    report = asyncio.run(replay())
    assert not called, "a step was run"
    return report


@flow(name="book")
async def as_recorded(ctx: FlowContext, room: int) -> str:
    booking = await ctx.step(reserve, room)
    await ctx.step(charge, 9_900)
    await ctx.wait_for_signal("arrived", bool)
    return booking


@flow(name="book")
async def with_more_at_the_end(ctx: FlowContext, room: int) -> str:
    booking = await ctx.step(reserve, room)
    await ctx.step(charge, 9_900)
    return await ctx.step(insure, booking)


@flow(name="book")
async def with_a_patch(ctx: FlowContext, room: int) -> str:
    booking = await ctx.step(reserve, room)
    if ctx.patched("insurance"):
        booking = await ctx.step(insure, booking)
    await ctx.step(charge, 9_900)
    return booking


@flow(name="book")
async def that_fails_now(ctx: FlowContext, room: int) -> str:
    await ctx.step(reserve, room)
    await ctx.step(charge, 9_900)
    raise ValueError("after all that was recorded")


@flow(name="book")
def without_async(ctx: Any, room: int) -> str:
    booking = ctx.step(reserve, room)
    ctx.step(charge, 9_900)
    return str(booking)


@each(as_recorded, with_more_at_the_end, with_a_patch, that_fails_now, without_async)
def test_code_that_follows_the_history_is_ok(code: FlowDefinition[..., Any]) -> None:
    report = verify(export(), code)
    assert (report.result, report.detail) == (ReplayResult.OK, "")
    assert (report.steps, report.replayed) == (2, 2)


@each(*[status for status in FlowStatus if status is not FlowStatus.UNREADABLE])
def test_any_status_is_verified(status: FlowStatus) -> None:
    assert verify(export(status=status), as_recorded).result is ReplayResult.OK
    assert verify(export(status=status), reordered).result is ReplayResult.CHANGED


@flow(name="book")
async def reordered(ctx: FlowContext, room: int) -> str:
    await ctx.step(charge, 9_900)
    return await ctx.step(reserve, room)


@flow(name="book")
async def with_a_step_between(ctx: FlowContext, room: int) -> str:
    booking = await ctx.step(insure, await ctx.step(reserve, room))
    await ctx.step(charge, 9_900)
    return booking


@flow(name="book")
async def dearer(ctx: FlowContext, room: int) -> str:
    booking = await ctx.step(reserve, room)
    await ctx.step(charge, 12_900)
    return booking


@flow(name="book")
async def shorter(ctx: FlowContext, room: int) -> str:
    return await ctx.step(reserve, room)


@flow(name="book")
async def that_fails_early(ctx: FlowContext, room: int) -> str:
    await ctx.step(reserve, room)
    raise ValueError("too early")


async def doze() -> None:
    await asyncio.sleep(0)


@flow(name="book")
async def that_awaits_the_loop(ctx: FlowContext, room: int) -> str:
    await ctx.step(reserve, room)
    await ctx.step(charge, 9_900)
    await doze()
    return ""


def count_rooms(room: int) -> int:
    return room


@flow(name="book")
async def of_another_type(ctx: FlowContext, room: int) -> int:
    return await ctx.step.with_options(name="reserve")(count_rooms, room)


@each(
    (reordered, 0, "0 step(reserve)   (recorded)\n  + step 0: the code requests 0 step(charge)"),
    (with_a_step_between, 1, "the name was 'charge', and is 'insure'"),
    (dearer, 1, "the arguments differ"),
    (shorter, 1, "1 step(charge)   (recorded)\n  + step 1: the code has ended"),
    (that_fails_early, 1, "the code has ended: ValueError('too early')"),
    (that_awaits_the_loop, 2, "the flow awaited the event loop, which cannot be recorded"),
    (of_another_type, 1, "cannot read the recorded result of step 0 step(reserve): Expected `int`"),
)
def test_difference_is_told(code: FlowDefinition[..., Any], replayed: int, message: str) -> None:
    report = verify(export(), code)
    assert report.result is ReplayResult.CHANGED
    assert message in report.detail
    assert report.replayed == replayed


def test_flow_without_code_is_told() -> None:
    @flow
    async def other(ctx: FlowContext) -> None: ...

    report = verify(export(), other)
    assert report.result is ReplayResult.NO_CODE
    assert "the program has no flow 'book'; its flows are: other. Keep the code" in report.detail


@flow(name="book")
async def of_a_text(ctx: FlowContext, room: str) -> str:
    return await ctx.step(reserve, 12)


@flow(name="book")
async def of_more(ctx: FlowContext, room: int, guest: str) -> str:
    return await ctx.step(reserve, 12)


@each((of_a_text, "Expected `str`, got `int`"), (of_more, "missing a required argument: 'guest'"))
def test_arguments_that_do_not_fit_are_told(code: FlowDefinition[..., Any], message: str) -> None:
    report = verify(export(), code)
    assert report.result is ReplayResult.ARGUMENTS
    assert f"the recorded arguments do not fit flow 'book': {message}" in report.detail


def test_a_responder_is_found_by_the_flow_it_responds_to() -> None:
    @responder("ask", name="answer")
    async def reply(ctx: FlowContext, session: FlowSession) -> None:
        await ctx.step(reserve, 12)
        await session.send("yes")

    origin = InitiatingSession("beta", SessionKey(5, 0), "ask", 1, "")
    exported = export([BOOKED[0]], initiated_by=origin)
    assert verify(exported, reply).result is ReplayResult.OK
    report = verify(exported, as_recorded)
    assert report.result is ReplayResult.NO_CODE
    assert "the program has no responder to 'ask'; its flows are: book" in report.detail


def test_a_child_that_ends_tells_nobody() -> None:
    child = export(parent=format_flow_id(3), client_id="flow:3.1.0")
    assert verify(child, without_async).result is ReplayResult.OK


def damaged_state(exported: ExportedFlow) -> ExportedFlow:
    header = msgspec.structs.replace(exported.header, state=b"\x80\x04pickle")
    return ExportedFlow(header, exported.steps)


def of_another_flow(exported: ExportedFlow) -> ExportedFlow:
    header = msgspec.structs.replace(exported.header, id=format_flow_id(8))
    return ExportedFlow(header, exported.steps)


def damaged_entry(exported: ExportedFlow) -> ExportedFlow:
    return ExportedFlow(exported.header, [HistoryStep("0 step(reserve)", b"\xc1")])


def deep_entry(exported: ExportedFlow) -> ExportedFlow:
    return ExportedFlow(exported.header, [HistoryStep("", b"\x91" * 100_000)])


def unknown_session(exported: ExportedFlow) -> ExportedFlow:
    facts: dict[str, Any] = {"name": "beta", "digest": b"", "at_ms": 0, "sessions": (-3,)}
    wrong = HistoryEntry(position=(0,), kind=CommandKind.SEND, **facts)
    return ExportedFlow(exported.header, [HistoryStep("", encode_history_entry(wrong))])


@pytest.mark.parametrize(
    "damage", [damaged_state, of_another_flow, damaged_entry, deep_entry, unknown_session]
)
def test_damage_is_told_and_harms_nothing(damage: Callable[[ExportedFlow], ExportedFlow]) -> None:
    report = verify(damage(export()), as_recorded)
    assert report.result in (ReplayResult.UNREADABLE, ReplayResult.CHANGED)
    assert report.detail
