"""What goes wrong in a conversation, and what the other end hears of it."""

from __future__ import annotations

import contextlib

import msgspec
import pytest

from postroad.core.errors import ConfigError, UsageError
from postroad.flows import FlowContext, FlowSession, FlowStatus, flow, responder
from postroad.flows.errors import (
    FlowError,
    FlowTimeoutError,
    PeerFlowFailedError,
    SessionEndedError,
    SessionRejectedError,
)
from tests.support.deadlines import DEADLINE_S
from tests.support.durable.mail_pairs import QUICK, until_empty
from tests.support.flows.nodes import FlowNodes

LARGEST = QUICK.message_bytes_max - 2_048 - 5
"""Bytes that can just be sent."""


class NoMoney(FlowError):
    """An error of the users' own."""


@flow
async def buy(ctx: FlowContext, peer: str, price: int) -> str:
    return await ctx.open_session(peer).send_and_receive(price, str)


@responder(buy)
async def refuse(ctx: FlowContext, session: FlowSession) -> None:
    price = await session.receive(int)
    if price > 100:
        raise NoMoney(f"{price} is too much")
    raise ValueError("a secret of beta")


async def test_peer_receives_flow_error(nodes: FlowNodes) -> None:
    alpha, beta = await nodes.pair(buy, refuse)
    handle = await alpha.begin(buy, "beta", 200)
    with pytest.raises(
        PeerFlowFailedError, match="the flow of beta has failed: 200 is too much"
    ) as caught:
        await handle.result(DEADLINE_S)
    assert (caught.value.peer, caught.value.kind) == ("beta", "NoMoney")
    (refused,) = await beta.until_listed("refuse", FlowStatus.FAILED)
    assert refused.error == "NoMoney: 200 is too much"
    bought = await alpha.until(handle.id, FlowStatus.FAILED)
    assert bought.error_id == refused.error_id == caught.value.error_id
    handle_there = await beta.flows.get_handle(refused.id)
    with pytest.raises(NoMoney, match="200 is too much"):
        await handle_there.result(DEADLINE_S)


async def test_peer_is_notified_when_parked_flow_is_killed(nodes: FlowNodes) -> None:
    alpha, beta = await nodes.pair(buy, refuse)
    handle = await alpha.begin(buy, "beta", 50)
    (refused,) = await beta.until_listed("refuse", FlowStatus.PARKED)
    assert refused.error == "ValueError: a secret of beta"
    assert (await alpha.flows.admin.show(handle.id)).status is FlowStatus.RUNNING
    await beta.flows.admin.kill(refused.id, "no way to mend a secret")
    with pytest.raises(PeerFlowFailedError) as caught:
        await handle.result(DEADLINE_S)
    killed = await beta.flows.admin.show(refused.id)
    assert (caught.value.kind, caught.value.error_id) == (None, killed.error_id)
    assert "secret" not in str(caught.value)
    assert str(killed.error_id) in str(caught.value)


@flow
async def buy_twice(ctx: FlowContext, peer: str) -> list[str]:
    texts = []
    for price in (200, 300):
        try:
            await ctx.open_session(peer).send_and_receive(price, str)
        except PeerFlowFailedError as failed:
            texts.append(f"{failed.kind} at {failed.peer}: {failed.error_id}")
    return texts


@responder(buy_twice)
async def refuse_twice(ctx: FlowContext, session: FlowSession) -> None:
    raise NoMoney(f"{await session.receive(int)} is too much")


async def test_a_flow_lives_on_with_the_failure_of_another(nodes: FlowNodes) -> None:
    alpha, beta = await nodes.pair(buy_twice, refuse_twice)
    texts = await alpha.run(buy_twice, "beta")
    failed = await beta.until_listed("refuse_twice", FlowStatus.FAILED, 2)
    assert texts == [f"NoMoney at beta: {view.error_id}" for view in failed]


@flow
async def pass_on(ctx: FlowContext, peer: str, farther: str) -> str:
    return await ctx.open_session(peer).send_and_receive(farther, str)


@responder(pass_on)
async def pass_farther(ctx: FlowContext, session: FlowSession) -> None:
    await session.send(
        await ctx.open_session(await session.receive(str)).send_and_receive("x", str)
    )


@responder(pass_farther)
async def fail_far_away(ctx: FlowContext, session: FlowSession) -> None:
    await session.receive(str)
    raise NoMoney("only beta may know")


async def test_error_of_third_flow_is_not_forwarded(nodes: FlowNodes) -> None:
    alpha = await nodes.start("alpha", pass_on)
    beta = await nodes.start("beta", pass_farther)
    gamma = await nodes.start("gamma", fail_far_away)
    handle = await alpha.begin(pass_on, "beta", "gamma")
    with pytest.raises(PeerFlowFailedError) as caught:
        await handle.result(DEADLINE_S)
    (far,) = await gamma.until_listed("fail_far_away", FlowStatus.FAILED)
    (near,) = await beta.until_listed("pass_farther", FlowStatus.FAILED)
    assert "only beta may know" in str(near.error)
    assert "only beta may know" not in str(caught.value)
    assert caught.value.error_id == near.error_id == far.error_id


@flow(name="talk", version=2)
async def talk_new(ctx: FlowContext, peer: str) -> str:
    return await ctx.open_session(peer).send_and_receive("hello", str)


@responder("talk", versions=[1, 3])
async def talk_back(ctx: FlowContext, session: FlowSession) -> None:
    await session.send(await session.receive(str))


async def test_a_version_that_cannot_be_talked_to_is_rejected(nodes: FlowNodes) -> None:
    alpha = await nodes.start("alpha", talk_new)
    beta = await nodes.start("beta", talk_back)
    handle = await alpha.begin(talk_new, "beta")
    expected = "talk_back talks to versions 1, 3 of talk, not to 2"
    with pytest.raises(SessionRejectedError, match=expected):
        await handle.result(DEADLINE_S)
    assert await beta.flows.admin.list() == []
    await until_empty(beta.station.mail, "alpha")


@flow(name="talk", version=2)
async def ask_whether(ctx: FlowContext, peer: str) -> list[str]:
    session = ctx.open_session(peer)
    texts = []
    await session.send("hello")
    attempts = (session.peer_info, lambda: session.receive(str), lambda: session.send("more"))
    for attempt in attempts:
        try:
            await attempt()
        except FlowError as error:
            texts.append(type(error).__name__)
    return texts


async def test_everything_about_a_rejected_session_fails(nodes: FlowNodes) -> None:
    alpha = await nodes.start("alpha", ask_whether)
    await nodes.start("beta", talk_back)
    texts = await alpha.run(ask_whether, "beta")
    assert texts == ["SessionRejectedError", "SessionRejectedError", "SessionEndedError"]


@flow
async def say_much(ctx: FlowContext, peer: str) -> list[int]:
    session = ctx.open_session(peer)
    for number in range(5):
        await session.send(number)
    return await session.receive(list[int])


@responder(say_much)
async def hear_much(ctx: FlowContext, session: FlowSession) -> None:
    await session.send([await session.receive(int) for _ in range(5)])


async def test_session_without_responder_is_held(nodes: FlowNodes) -> None:
    alpha = await nodes.start("alpha", say_much)
    beta = await nodes.start("beta", talk_back)
    handle = await alpha.begin(say_much, "beta")
    (held,) = await beta.until_listed("say_much", FlowStatus.HELD)
    assert held.peer == "alpha"
    await beta.restart_flows(talk_back)
    await until_empty(alpha.station.mail, "beta")
    assert (await beta.flows.admin.show(held.id)).status is FlowStatus.HELD
    await beta.restart_flows(talk_back, hear_much)
    assert await handle.result(DEADLINE_S) == [0, 1, 2, 3, 4]
    assert (await beta.until(held.id, FlowStatus.COMPLETED)).name == "hear_much"


@flow
async def say_in_pieces(ctx: FlowContext, peer: str) -> list[int]:
    session = ctx.open_session(peer)
    await session.send(0)
    for number in range(1, 5):
        await ctx.wait_for_signal("next", bool)
        await session.send(number)
    return await session.receive(list[int])


@responder(say_in_pieces)
async def hear_pieces(ctx: FlowContext, session: FlowSession) -> None:
    await session.send([await session.receive(int) for _ in range(5)])


async def test_later_messages_to_held_flow_are_buffered(nodes: FlowNodes) -> None:
    alpha = await nodes.start("alpha", say_in_pieces)
    beta = await nodes.start("beta", talk_back)
    handle = await alpha.begin(say_in_pieces, "beta")
    (held,) = await beta.until_listed("say_in_pieces", FlowStatus.HELD)
    for _ in range(2):
        await alpha.flows.signal(handle.id, "next", True)
        await until_empty(alpha.station.mail, "beta")
    await beta.restart()
    for _ in range(2):
        await alpha.flows.signal(handle.id, "next", True)
    await beta.restart_flows(hear_pieces)
    assert await handle.result(DEADLINE_S) == [0, 1, 2, 3, 4]
    await beta.until(held.id, FlowStatus.COMPLETED)


async def test_a_held_flow_that_is_killed_rejects_the_session(nodes: FlowNodes) -> None:
    alpha = await nodes.start("alpha", say_much)
    beta = await nodes.start("beta", talk_back)
    handle = await alpha.begin(say_much, "beta")
    (held,) = await beta.until_listed("say_much", FlowStatus.HELD)
    await beta.flows.admin.kill(held.id, "nobody wants this")
    with pytest.raises(SessionRejectedError, match="nobody wants this"):
        await handle.result(DEADLINE_S)


@responder("talk")
async def send_a_number(ctx: FlowContext, session: FlowSession) -> None:
    await session.receive(str)
    await session.send(7)
    await session.send("eight")


@flow(name="talk")
async def receive_wrongly(ctx: FlowContext, peer: str) -> list[str]:
    session = ctx.open_session(peer)
    await session.send("x")
    texts = []
    try:
        await session.receive(str)
    except FlowError as error:
        texts.append(str(error))
    texts.append(await session.receive(str))
    return texts


async def test_value_of_other_type_raises_flow_error(nodes: FlowNodes) -> None:
    alpha = await nodes.start("alpha", receive_wrongly)
    await nodes.start("beta", send_a_number)
    wrong, right = await alpha.run(receive_wrongly, "beta")
    assert "receive(beta) got a value of another type" in wrong
    assert "Expected `str`, got `int`" in wrong
    assert right == "eight"


@flow
async def send_too_much(ctx: FlowContext, peer: str) -> str:
    session = ctx.open_session(peer)
    refused = ""
    try:
        await session.send(b"x" * (1 << 20))
    except UsageError as error:
        refused = str(error)
    return f"{refused}; {await session.send_and_receive(b'x' * 1_000_000, int)}"


@responder(send_too_much)
async def measure(ctx: FlowContext, session: FlowSession) -> None:
    await session.send(len(await session.receive(bytes)))


async def test_a_value_that_fits_into_no_message_is_refused(nodes: FlowNodes) -> None:
    alpha, _ = await nodes.pair(send_too_much, measure)
    text = await alpha.run(send_too_much, "beta")
    assert "cannot send 1048581 bytes to beta" in text
    assert text.endswith("; 1000000")


@flow
async def send_many_large(ctx: FlowContext, peer: str) -> int:
    session = ctx.open_session(peer)
    for _ in range(5):
        await session.send(b"x" * 400_000)
    return await session.receive(int)


@responder(send_many_large)
async def measure_all(ctx: FlowContext, session: FlowSession) -> None:
    await session.send(sum([len(await session.receive(bytes)) for _ in range(5)]))


async def test_large_session_commit_is_sent_in_several_envelopes(nodes: FlowNodes) -> None:
    alpha, _ = await nodes.pair(send_many_large, measure_all)
    assert await alpha.run(send_many_large, "beta") == 2_000_000


@flow
async def send_much_and_fail(ctx: FlowContext, peer: str, less: int, text: str) -> None:
    await ctx.open_session(peer).send(b"x" * (LARGEST - less))
    raise NoMoney(text)


@responder(send_much_and_fail)
async def hear_all(ctx: FlowContext, session: FlowSession) -> list[object]:
    size = len(await session.receive(bytes))
    try:
        await session.receive(bytes)
    except PeerFlowFailedError as error:
        return [size, error.kind, len(str(error))]
    return []


async def test_failure_beyond_envelope_limit_is_sent_separately(nodes: FlowNodes) -> None:
    alpha, beta = await nodes.pair(send_much_and_fail, hear_all)
    cases = [(less, char) for less in (0, 500, 1_000, 2_000, 10_000) for char in "x\N{SNOWMAN}"]
    for count, (less, character) in enumerate(cases, 1):
        handle = await alpha.begin(send_much_and_fail, "beta", less, character * 5_000)
        with pytest.raises(NoMoney):
            await alpha.result(handle.id)
        *_, responder = await beta.until_listed("hear_all", FlowStatus.COMPLETED, count)
        size, kind, length = await beta.result(responder.id)
        assert (size, kind) == (LARGEST - less, "NoMoney"), (less, character)
        assert length > 1_900, (less, character)


async def test_failure_larger_than_envelope_is_truncated(nodes: FlowNodes) -> None:
    config = msgspec.structs.replace(QUICK, message_bytes_max=4_096)
    definitions = (send_much_and_fail, hear_all)
    alpha = await nodes.start("alpha", *definitions, mail_config=config)
    beta = await nodes.start("beta", *definitions, mail_config=config)
    text = "\N{SNOWMAN}" * 5_000
    handle = await alpha.begin(send_much_and_fail, "beta", LARGEST - 1_000, text)
    with pytest.raises(NoMoney):
        await alpha.result(handle.id)
    (responder,) = await beta.until_listed("hear_all", FlowStatus.COMPLETED)
    assert (await beta.result(responder.id))[:2] == [1_000, "NoMoney"]


async def test_messages_that_are_too_small_for_flows(nodes: FlowNodes) -> None:
    config = msgspec.structs.replace(QUICK, message_bytes_max=1_023)
    with pytest.raises(ConfigError, match="message_bytes_max=1023 of the queues is too little"):
        await nodes.start("alpha", send_much_and_fail, mail_config=config)


@flow
async def send_too_much_first(ctx: FlowContext, peer: str) -> int:
    session = ctx.open_session(peer)
    with contextlib.suppress(UsageError):
        await session.send(b"x" * 1_048_576)
    return await session.receive(int)


@responder(send_too_much_first)
async def speak_first(ctx: FlowContext, session: FlowSession) -> None:
    await session.send(7)


async def test_a_session_can_be_used_after_something_did_not_fit(nodes: FlowNodes) -> None:
    alpha, _ = await nodes.pair(send_too_much_first, speak_first)
    handle = await alpha.begin(send_too_much_first, "beta")
    assert await alpha.result(handle.id) == 7
    history = await alpha.flows.admin.history(handle.id)
    assert "cannot send 1048581 bytes" in str(history[0].error)


@flow
async def wait_in_vain(ctx: FlowContext, peer: str) -> str:
    session = ctx.open_session(peer)
    waited = ""
    try:
        await session.receive(str, timeout=0.05)
    except FlowTimeoutError as error:
        waited = str(error)
    await session.send("go on")
    return f"{waited}; {await session.receive(str, timeout=10)}"


@responder(wait_in_vain)
async def keep_waiting(ctx: FlowContext, session: FlowSession) -> None:
    await session.receive(str)
    await session.send("late")


async def test_receiving_takes_too_long_and_the_session_goes_on(nodes: FlowNodes) -> None:
    alpha, _ = await nodes.pair(wait_in_vain, keep_waiting)
    text = await alpha.run(wait_in_vain, "beta")
    assert "receive(beta) took too long" in text
    assert text.endswith("; late")


@flow
async def talk_after_the_end(ctx: FlowContext, peer: str) -> list[str]:
    session = ctx.open_session(peer)
    await session.send("x")
    texts = []
    for _ in range(2):
        try:
            await session.receive(str)
        except SessionEndedError as error:
            texts.append(str(error))
    try:
        await session.send("more")
    except SessionEndedError as error:
        texts.append(str(error))
    await session.close()
    for attempt in (lambda: session.send("more"), lambda: session.receive(str)):
        try:
            await attempt()
        except (UsageError, SessionEndedError) as error:
            texts.append(type(error).__name__)
    return texts


@responder(talk_after_the_end)
async def end_soon(ctx: FlowContext, session: FlowSession) -> None:
    await session.receive(str)


async def test_send_after_session_end_raises(nodes: FlowNodes) -> None:
    alpha, _ = await nodes.pair(talk_after_the_end, end_soon)
    first, second, third, *closed = await alpha.run(talk_after_the_end, "beta")
    assert "beta has ended this session before everything was received" in first
    assert "beta sends nothing more in this session" in second
    assert "beta has ended this session" in third
    assert closed == ["UsageError", "SessionEndedError"]


@flow
async def hear_all_but_one(ctx: FlowContext, peers: list[str]) -> list[str]:
    sessions = [ctx.open_session(peer) for peer in peers]
    await ctx.send_all({session: session.peer for session in sessions})
    try:
        await ctx.receive_all(sessions, str)
    except PeerFlowFailedError as failed:
        return [failed.peer, str(failed.kind)]
    return []


@responder(hear_all_but_one)
async def fail_at_beta(ctx: FlowContext, session: FlowSession) -> None:
    if await session.receive(str) == "beta":
        raise NoMoney("not here")
    await session.send("fine")


async def test_one_of_several_fails(nodes: FlowNodes) -> None:
    alpha, _ = await nodes.pair(hear_all_but_one, fail_at_beta)
    assert await alpha.run(hear_all_but_one, ["alpha", "beta"]) == ["beta", "NoMoney"]
