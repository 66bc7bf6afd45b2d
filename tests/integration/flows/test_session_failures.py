"""What goes wrong in a conversation, and what the other end hears of it."""

from __future__ import annotations

import contextlib

import msgspec
import pytest

from postroad.core.errors import ConfigError, UsageError
from postroad.flows import Flow, Session, Status, flow, responds_to
from postroad.flows.errors import FlowError, FlowTimeout, PeerFailed, SessionEnded, SessionRejected
from tests.support.deadlines import DEADLINE_S
from tests.support.durable.mail_pairs import QUICK, until_empty
from tests.support.flows.nodes import FlowNodes

LARGEST = QUICK.message_bytes_max - 2_048 - 5
"""Bytes that can just be sent."""


class NoMoney(FlowError):
    """An error of the users' own."""


@flow
async def buy(flow: Flow, peer: str, price: int) -> str:
    return await flow.open(peer).send_and_receive(price, str)


@responds_to(buy)
async def refuse(flow: Flow, session: Session) -> None:
    price = await session.receive(int)
    if price > 100:
        raise NoMoney(f"{price} is too much")
    raise ValueError("a secret of beta")


async def test_the_other_end_hears_a_flow_error(nodes: FlowNodes) -> None:
    alpha, beta = await nodes.pair(buy, refuse)
    handle = await alpha.begin(buy, "beta", 200)
    with pytest.raises(PeerFailed, match="the flow of beta has failed: 200 is too much") as caught:
        await handle.result(DEADLINE_S)
    assert (caught.value.peer, caught.value.kind) == ("beta", "NoMoney")
    (refused,) = await beta.until_listed("refuse", Status.FAILED)
    assert refused.error == "NoMoney: 200 is too much"
    bought = await alpha.until(handle.id, Status.FAILED)
    assert bought.error_id == refused.error_id == caught.value.error_id
    handle_there = await beta.flows.handle(refused.id)
    with pytest.raises(NoMoney, match="200 is too much"):
        await handle_there.result(DEADLINE_S)


async def test_the_other_end_hears_of_a_parked_flow_when_it_is_killed(nodes: FlowNodes) -> None:
    alpha, beta = await nodes.pair(buy, refuse)
    handle = await alpha.begin(buy, "beta", 50)
    (refused,) = await beta.until_listed("refuse", Status.PARKED)
    assert refused.error == "ValueError: a secret of beta"
    assert (await alpha.flows.show(handle.id)).status is Status.RUNNING
    await beta.flows.kill(refused.id, "no way to mend a secret")
    with pytest.raises(PeerFailed) as caught:
        await handle.result(DEADLINE_S)
    killed = await beta.flows.show(refused.id)
    assert (caught.value.kind, caught.value.error_id) == (None, killed.error_id)
    assert "secret" not in str(caught.value)
    assert str(killed.error_id) in str(caught.value)


@flow
async def buy_twice(flow: Flow, peer: str) -> list[str]:
    heard = []
    for price in (200, 300):
        try:
            await flow.open(peer).send_and_receive(price, str)
        except PeerFailed as failed:
            heard.append(f"{failed.kind} at {failed.peer}: {failed.error_id}")
    return heard


@responds_to(buy_twice)
async def refuse_twice(flow: Flow, session: Session) -> None:
    raise NoMoney(f"{await session.receive(int)} is too much")


async def test_a_flow_lives_on_with_the_failure_of_another(nodes: FlowNodes) -> None:
    alpha, beta = await nodes.pair(buy_twice, refuse_twice)
    heard = await alpha.run(buy_twice, "beta")
    failed = await beta.until_listed("refuse_twice", Status.FAILED, 2)
    assert heard == [f"NoMoney at beta: {it.error_id}" for it in failed]


@flow
async def pass_on(flow: Flow, peer: str, farther: str) -> str:
    return await flow.open(peer).send_and_receive(farther, str)


@responds_to(pass_on)
async def pass_farther(flow: Flow, session: Session) -> None:
    await session.send(await flow.open(await session.receive(str)).send_and_receive("x", str))


@responds_to(pass_farther)
async def fail_far_away(flow: Flow, session: Session) -> None:
    await session.receive(str)
    raise NoMoney("only beta may know")


async def test_what_a_third_party_said_is_not_passed_on(nodes: FlowNodes) -> None:
    alpha = await nodes.start("alpha", pass_on)
    beta = await nodes.start("beta", pass_farther)
    gamma = await nodes.start("gamma", fail_far_away)
    handle = await alpha.begin(pass_on, "beta", "gamma")
    with pytest.raises(PeerFailed) as caught:
        await handle.result(DEADLINE_S)
    (far,) = await gamma.until_listed("fail_far_away", Status.FAILED)
    (near,) = await beta.until_listed("pass_farther", Status.FAILED)
    assert "only beta may know" in str(near.error)
    assert "only beta may know" not in str(caught.value)
    assert caught.value.error_id == near.error_id == far.error_id


@flow(name="talk", version=2)
async def talk_new(flow: Flow, peer: str) -> str:
    return await flow.open(peer).send_and_receive("hello", str)


@responds_to("talk", versions=[1, 3])
async def talk_back(flow: Flow, session: Session) -> None:
    await session.send(await session.receive(str))


async def test_a_version_that_cannot_be_talked_to_is_rejected(nodes: FlowNodes) -> None:
    alpha = await nodes.start("alpha", talk_new)
    beta = await nodes.start("beta", talk_back)
    handle = await alpha.begin(talk_new, "beta")
    expected = "talk_back talks to versions 1, 3 of talk, not to 2"
    with pytest.raises(SessionRejected, match=expected):
        await handle.result(DEADLINE_S)
    assert await beta.flows.list() == []
    await until_empty(beta.station.mail, "alpha")


@flow(name="talk", version=2)
async def ask_whether(flow: Flow, peer: str) -> list[str]:
    session = flow.open(peer)
    heard = []
    await session.send("hello")
    attempts = (session.info, lambda: session.receive(str), lambda: session.send("more"))
    for attempt in attempts:
        try:
            await attempt()
        except FlowError as error:
            heard.append(type(error).__name__)
    return heard


async def test_everything_about_a_rejected_session_fails(nodes: FlowNodes) -> None:
    alpha = await nodes.start("alpha", ask_whether)
    await nodes.start("beta", talk_back)
    heard = await alpha.run(ask_whether, "beta")
    assert heard == ["SessionRejected", "SessionRejected", "SessionEnded"]


@flow
async def say_much(flow: Flow, peer: str) -> list[int]:
    session = flow.open(peer)
    for number in range(5):
        await session.send(number)
    return await session.receive(list[int])


@responds_to(say_much)
async def hear_much(flow: Flow, session: Session) -> None:
    await session.send([await session.receive(int) for _ in range(5)])


async def test_what_nobody_responds_to_is_kept_until_there_is_code(nodes: FlowNodes) -> None:
    alpha = await nodes.start("alpha", say_much)
    beta = await nodes.start("beta", talk_back)
    handle = await alpha.begin(say_much, "beta")
    (held,) = await beta.until_listed("say_much", Status.HELD)
    assert held.peer == "alpha"
    await beta.restart_flows(talk_back)
    await until_empty(alpha.station.mail, "beta")
    assert (await beta.flows.show(held.id)).status is Status.HELD
    await beta.restart_flows(talk_back, hear_much)
    assert await handle.result(DEADLINE_S) == [0, 1, 2, 3, 4]
    assert (await beta.until(held.id, Status.DONE)).name == "hear_much"


@flow
async def say_in_pieces(flow: Flow, peer: str) -> list[int]:
    session = flow.open(peer)
    await session.send(0)
    for number in range(1, 5):
        await flow.signal("next", bool)
        await session.send(number)
    return await session.receive(list[int])


@responds_to(say_in_pieces)
async def hear_pieces(flow: Flow, session: Session) -> None:
    await session.send([await session.receive(int) for _ in range(5)])


async def test_what_is_said_later_to_a_held_flow_is_kept_too(nodes: FlowNodes) -> None:
    alpha = await nodes.start("alpha", say_in_pieces)
    beta = await nodes.start("beta", talk_back)
    handle = await alpha.begin(say_in_pieces, "beta")
    (held,) = await beta.until_listed("say_in_pieces", Status.HELD)
    for _ in range(2):
        await alpha.flows.signal(handle.id, "next", True)
        await until_empty(alpha.station.mail, "beta")
    await beta.restart()
    for _ in range(2):
        await alpha.flows.signal(handle.id, "next", True)
    await beta.restart_flows(hear_pieces)
    assert await handle.result(DEADLINE_S) == [0, 1, 2, 3, 4]
    await beta.until(held.id, Status.DONE)


async def test_a_held_flow_that_is_killed_rejects_the_session(nodes: FlowNodes) -> None:
    alpha = await nodes.start("alpha", say_much)
    beta = await nodes.start("beta", talk_back)
    handle = await alpha.begin(say_much, "beta")
    (held,) = await beta.until_listed("say_much", Status.HELD)
    await beta.flows.kill(held.id, "nobody wants this")
    with pytest.raises(SessionRejected, match="nobody wants this"):
        await handle.result(DEADLINE_S)


@responds_to("talk")
async def send_a_number(flow: Flow, session: Session) -> None:
    await session.receive(str)
    await session.send(7)
    await session.send("eight")


@flow(name="talk")
async def receive_wrongly(flow: Flow, peer: str) -> list[str]:
    session = flow.open(peer)
    await session.send("x")
    heard = []
    try:
        await session.receive(str)
    except FlowError as error:
        heard.append(str(error))
    heard.append(await session.receive(str))
    return heard


async def test_something_of_another_type_is_an_error_of_its_own(nodes: FlowNodes) -> None:
    alpha = await nodes.start("alpha", receive_wrongly)
    await nodes.start("beta", send_a_number)
    wrong, right = await alpha.run(receive_wrongly, "beta")
    assert "receive(beta) got something else than it wants" in wrong
    assert "Expected `str`, got `int`" in wrong
    assert right == "eight"


@flow
async def send_too_much(flow: Flow, peer: str) -> str:
    session = flow.open(peer)
    refused = ""
    try:
        await session.send(b"x" * (1 << 20))
    except UsageError as error:
        refused = str(error)
    return f"{refused}; {await session.send_and_receive(b'x' * 1_000_000, int)}"


@responds_to(send_too_much)
async def measure(flow: Flow, session: Session) -> None:
    await session.send(len(await session.receive(bytes)))


async def test_a_value_that_fits_into_no_message_is_refused(nodes: FlowNodes) -> None:
    alpha, _ = await nodes.pair(send_too_much, measure)
    text = await alpha.run(send_too_much, "beta")
    assert "what is sent to beta takes 1048581 bytes" in text
    assert text.endswith("; 1000000")


@flow
async def send_many_large(flow: Flow, peer: str) -> int:
    session = flow.open(peer)
    for _ in range(5):
        await session.send(b"x" * 400_000)
    return await session.receive(int)


@responds_to(send_many_large)
async def measure_all(flow: Flow, session: Session) -> None:
    await session.send(sum([len(await session.receive(bytes)) for _ in range(5)]))


async def test_what_does_not_fit_into_one_letter_goes_in_several(nodes: FlowNodes) -> None:
    alpha, _ = await nodes.pair(send_many_large, measure_all)
    assert await alpha.run(send_many_large, "beta") == 2_000_000


@flow
async def send_much_and_fail(flow: Flow, peer: str, less: int, text: str) -> None:
    await flow.open(peer).send(b"x" * (LARGEST - less))
    raise NoMoney(text)


@responds_to(send_much_and_fail)
async def hear_all(flow: Flow, session: Session) -> list[object]:
    size = len(await session.receive(bytes))
    try:
        await session.receive(bytes)
    except PeerFailed as error:
        return [size, error.kind, len(str(error))]
    return []


async def test_a_failure_that_does_not_fit_behind_what_was_sent(nodes: FlowNodes) -> None:
    alpha, beta = await nodes.pair(send_much_and_fail, hear_all)
    cases = [(less, char) for less in (0, 500, 1_000, 2_000, 10_000) for char in "x\N{SNOWMAN}"]
    for count, (less, character) in enumerate(cases, 1):
        handle = await alpha.begin(send_much_and_fail, "beta", less, character * 5_000)
        with pytest.raises(NoMoney):
            await alpha.result(handle.id)
        *_, responder = await beta.until_listed("hear_all", Status.DONE, count)
        size, kind, length = await beta.result(responder.id)
        assert (size, kind) == (LARGEST - less, "NoMoney"), (less, character)
        assert length > 1_900, (less, character)


async def test_a_failure_that_does_not_fit_into_a_letter_is_cut(nodes: FlowNodes) -> None:
    config = msgspec.structs.replace(QUICK, message_bytes_max=4_096)
    definitions = (send_much_and_fail, hear_all)
    alpha = await nodes.start("alpha", *definitions, mail_config=config)
    beta = await nodes.start("beta", *definitions, mail_config=config)
    text = "\N{SNOWMAN}" * 5_000
    handle = await alpha.begin(send_much_and_fail, "beta", LARGEST - 1_000, text)
    with pytest.raises(NoMoney):
        await alpha.result(handle.id)
    (responder,) = await beta.until_listed("hear_all", Status.DONE)
    assert (await beta.result(responder.id))[:2] == [1_000, "NoMoney"]


async def test_messages_that_are_too_small_for_flows(nodes: FlowNodes) -> None:
    config = msgspec.structs.replace(QUICK, message_bytes_max=1_023)
    with pytest.raises(ConfigError, match="message_bytes_max=1023 of the mail is too little"):
        await nodes.start("alpha", send_much_and_fail, mail_config=config)


@flow
async def send_too_much_first(flow: Flow, peer: str) -> int:
    session = flow.open(peer)
    with contextlib.suppress(UsageError):
        await session.send(b"x" * 1_048_576)
    return await session.receive(int)


@responds_to(send_too_much_first)
async def speak_first(flow: Flow, session: Session) -> None:
    await session.send(7)


async def test_a_session_can_be_used_after_something_did_not_fit(nodes: FlowNodes) -> None:
    alpha, _ = await nodes.pair(send_too_much_first, speak_first)
    handle = await alpha.begin(send_too_much_first, "beta")
    assert await alpha.result(handle.id) == 7
    history = await alpha.flows.history(handle.id)
    assert "takes 1048581 bytes" in str(history[0].error)


@flow
async def wait_in_vain(flow: Flow, peer: str) -> str:
    session = flow.open(peer)
    waited = ""
    try:
        await session.receive(str, timeout=0.05)
    except FlowTimeout as error:
        waited = str(error)
    await session.send("go on")
    return f"{waited}; {await session.receive(str, timeout=10)}"


@responds_to(wait_in_vain)
async def keep_waiting(flow: Flow, session: Session) -> None:
    await session.receive(str)
    await session.send("late")


async def test_receiving_takes_too_long_and_the_session_goes_on(nodes: FlowNodes) -> None:
    alpha, _ = await nodes.pair(wait_in_vain, keep_waiting)
    text = await alpha.run(wait_in_vain, "beta")
    assert "receive(beta) took too long" in text
    assert text.endswith("; late")


@flow
async def talk_after_the_end(flow: Flow, peer: str) -> list[str]:
    session = flow.open(peer)
    await session.send("x")
    heard = []
    for _ in range(2):
        try:
            await session.receive(str)
        except SessionEnded as error:
            heard.append(str(error))
    try:
        await session.send("more")
    except SessionEnded as error:
        heard.append(str(error))
    await session.close()
    for attempt in (lambda: session.send("more"), lambda: session.receive(str)):
        try:
            await attempt()
        except (UsageError, SessionEnded) as error:
            heard.append(type(error).__name__)
    return heard


@responds_to(talk_after_the_end)
async def end_soon(flow: Flow, session: Session) -> None:
    await session.receive(str)


async def test_nothing_can_be_said_after_the_end(nodes: FlowNodes) -> None:
    alpha, _ = await nodes.pair(talk_after_the_end, end_soon)
    first, second, third, *closed = await alpha.run(talk_after_the_end, "beta")
    assert "beta has ended this session, and more was expected of it" in first
    assert "beta says nothing more in this session" in second
    assert "beta has ended this session" in third
    assert closed == ["UsageError", "SessionEnded"]


@flow
async def hear_all_but_one(flow: Flow, peers: list[str]) -> list[str]:
    sessions = [flow.open(peer) for peer in peers]
    await flow.send_all({it: it.peer for it in sessions})
    try:
        await flow.receive_all(sessions, str)
    except PeerFailed as failed:
        return [failed.peer, str(failed.kind)]
    return []


@responds_to(hear_all_but_one)
async def fail_at_beta(flow: Flow, session: Session) -> None:
    if await session.receive(str) == "beta":
        raise NoMoney("not here")
    await session.send("fine")


async def test_one_of_several_fails(nodes: FlowNodes) -> None:
    alpha, _ = await nodes.pair(hear_all_but_one, fail_at_beta)
    assert await alpha.run(hear_all_but_one, ["alpha", "beta"]) == ["beta", "NoMoney"]
