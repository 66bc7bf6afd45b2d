"""The code of a bank as processes of the chaos tests begin with it, and as somebody changed it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from postroad.flows import (
    FlowContext,
    SyncFlowContext,
    SyncFlowSession,
    flow,
    responder,
)
from postroad.flows.definition import FlowDefinition
from postroad.flows.errors import FlowError, PeerFlowFailedError
from tests.chaos.flow_bank import (
    BRANCHES,
    CENTS_MAX,
    Order,
    act,
    ail,
    answer,
    ask,
    blurt,
    book,
    browse,
    choose,
    collect,
    credit,
    credit_part,
    delegate,
    dictate,
    errand,
    errands,
    hand_out,
    hang,
    hear_out,
    heed,
    know,
    listen,
    look,
    move,
    nap,
    note,
    order,
    part,
    pay,
    pay_both,
    recite,
    refuse,
    ship,
    take_order,
    task,
    whole,
)

# Those whose code is not always the same.


def _journey(*stages: str) -> FlowDefinition[[str], list[str]]:
    @flow(name="journey")
    async def journey(ctx: FlowContext, subject: str) -> list[str]:
        """Go from place to place, and wait in the midst."""
        seen = []
        for stage in stages:
            if stage == "wait":
                await ctx.wait_for_signal("go", bool)
            else:
                seen.append(
                    await ctx.step.with_options(name=stage.partition("-")[0])(act, subject, stage)
                )
        return seen

    return journey


def _doubt(function: Callable[[str], Any]) -> FlowDefinition[[str], str]:
    @flow(name="doubt")
    async def doubt(ctx: FlowContext, subject: str) -> str:
        """Ask somebody who may not know."""
        await ctx.step(note, subject, "before")
        found = await ctx.step.with_options(name="ask")(function, subject)
        await ctx.step(note, subject, "after")
        return str(found)

    return doubt


_ALWAYS: list[FlowDefinition[Any, Any]] = [
    *(pay, pay_both, dictate, ask, blurt, collect, order),
    *(errand, browse, errands, choose, nap, whole, part, ail, heed, ship),
    *(delegate, task, book),
]
_RESPONDERS: list[FlowDefinition[Any, Any]] = [
    *(credit, credit_part, listen, answer, hear_out, recite, take_order),
]


# The same as plain functions.


@flow(name="pay")
def plain_pay(ctx: SyncFlowContext, peer: str, payment: str, cents: int) -> str:
    ctx.step(move, payment, -cents)
    session = ctx.open_session(peer)
    try:
        receipt = session.send_and_receive(Order(payment, cents), str)
    except PeerFlowFailedError:
        ctx.step(move, payment, cents)
        raise
    ctx.step(note, payment, receipt)
    return receipt


@responder(plain_pay, name="credit")
def plain_credit(ctx: SyncFlowContext, session: SyncFlowSession) -> None:
    order = session.receive(Order)
    if order.cents > CENTS_MAX:
        raise FlowError(f"{order.payment} is too much")
    ctx.step(move, order.payment, order.cents)
    session.send(f"took {order.payment}")


@flow(name="errand")
def plain_errand(ctx: SyncFlowContext, subject: str) -> list[str]:
    return [ctx.step(act, subject, what) for what in ("first", "second", "third")]


@flow(name="browse")
def plain_browse(ctx: SyncFlowContext, subject: str) -> list[int]:
    first = ctx.read(look, subject, "first")
    second = ctx.read(look, subject, "second")
    ctx.step(note, subject, f"{first} {second}")
    return [first, second]


@flow(name="errands")
def plain_errands(ctx: SyncFlowContext, subject: str) -> list[str]:
    def branch(number: int) -> str:
        return ctx.step(act, subject, f"branch-{number}")

    return ctx.gather(*[partial(branch, number) for number in range(BRANCHES)])


@flow(name="choose")
def plain_choose(ctx: SyncFlowContext, subject: str) -> str:
    chosen, _ = ctx.select(
        hang=lambda: ctx.step(hang, subject),
        first=partial(ctx.wait_for_signal, "first", bool),
        second=partial(ctx.wait_for_signal, "second", bool),
    )
    ctx.step(note, subject, chosen)
    return chosen


@flow(name="whole")
def plain_whole(ctx: SyncFlowContext, subject: str) -> str:
    ctx.step(note, subject, "before")
    ctx.step(act, subject, "before")
    got = ctx.run_subflow(plain_part, subject)
    ctx.step(note, subject, "after")
    return got


@flow(name="part")
def plain_part(ctx: SyncFlowContext, subject: str) -> str:
    ctx.step(note, subject, "inside")
    return ctx.step(act, subject, "inside")


_PLAIN = {
    definition.name: definition
    for definition in (
        *(plain_pay, plain_credit, plain_errand, plain_browse, plain_errands, plain_choose),
        *(plain_whole, plain_part),
    )
}
_JOURNEY = _journey("home", "river", "wait", "hill")
_USUAL = [*_ALWAYS, *_RESPONDERS]

CODE: dict[str, list[FlowDefinition[Any, Any]]] = {
    "usual": [*_USUAL, _JOURNEY, _doubt(refuse)],
    "plain": [
        *[_PLAIN.get(definition.name, definition) for definition in _USUAL],
        *(_JOURNEY, _doubt(refuse)),
    ],
    "silent": [*_ALWAYS, _JOURNEY, _doubt(refuse)],
    "odd": [*_USUAL, _JOURNEY, _doubt(hand_out)],
    "mended": [*_USUAL, _JOURNEY, _doubt(know)],
    "fewer": [*_USUAL, _journey("home", "wait", "hill"), _doubt(refuse)],
    "extra": [*_USUAL, _journey("home", "road", "river", "wait", "hill"), _doubt(refuse)],
    "reordered": [*_USUAL, _journey("river", "home", "wait", "hill"), _doubt(refuse)],
    "arguments": [*_USUAL, _journey("home", "river-bank", "wait", "hill"), _doubt(refuse)],
    "shorter": [*_USUAL, _journey("home"), _doubt(refuse)],
}
"""What a process may have been started with: the code as it is, and as somebody changed it."""
