"""Flows at two and three nodes talk to each other."""

from __future__ import annotations

import msgspec

from postroad.core.errors import UsageError
from postroad.flows import FlowContext, FlowSession, FlowStatus, PeerFlowInfo, flow, responder
from postroad.flows.errors import SessionEndedError
from tests.support.deadlines import DEADLINE_S
from tests.support.flows.nodes import FlowNodes


class Offer(msgspec.Struct):
    """What flows may send each other."""

    item: str
    price: int


@flow
async def ping(ctx: FlowContext, peer: str) -> str:
    return await ctx.open_session(peer).send_and_receive("Ping", str)


@responder(ping)
async def pong(ctx: FlowContext, session: FlowSession) -> str:
    text = await session.receive(str)
    await session.send("Pong")
    return text


async def test_ping_pong(nodes: FlowNodes) -> None:
    alpha, beta = await nodes.pair(ping, pong)
    assert await alpha.run(ping, "beta") == "Pong"
    (answered,) = await beta.until_listed("pong", FlowStatus.COMPLETED)
    assert answered.peer == "alpha"
    assert await beta.result(answered.id) == "Ping"


async def test_both_nodes_can_start_flows(nodes: FlowNodes) -> None:
    alpha, beta = await nodes.pair(ping, pong)
    first, second = await alpha.begin(ping, "beta"), await beta.begin(ping, "alpha")
    assert [await first.result(DEADLINE_S), await second.result(DEADLINE_S)] == ["Pong", "Pong"]
    await alpha.until_listed("pong", FlowStatus.COMPLETED)
    await beta.until_listed("pong", FlowStatus.COMPLETED)


async def test_a_flow_talks_to_its_own_node(nodes: FlowNodes) -> None:
    alpha = await nodes.start("alpha", ping, pong)
    assert await alpha.run(ping, "alpha") == "Pong"
    (answered,) = await alpha.until_listed("pong", FlowStatus.COMPLETED)
    assert answered.peer == "alpha"


async def test_nothing_is_left_in_the_store_but_the_flows(nodes: FlowNodes) -> None:
    alpha, beta = await nodes.pair(ping, pong)
    await alpha.run(ping, "beta")
    await beta.until_listed("pong", FlowStatus.COMPLETED)
    for node in (alpha, beta):
        assert await node.rows("SELECT COUNT(*) FROM postroad_flow_mail") == [(0,)]


@flow
async def bargain(ctx: FlowContext, peer: str, rounds: int) -> list[Offer]:
    session = ctx.open_session(peer)
    return [await session.send_and_receive(Offer("tea", number), Offer) for number in range(rounds)]


@responder(bargain)
async def haggle(ctx: FlowContext, session: FlowSession) -> int:
    rounds = 0
    while True:
        try:
            offer = await session.receive(Offer)
        except SessionEndedError:
            return rounds
        await session.send(Offer(offer.item, offer.price + 100))
        rounds += 1


async def test_a_long_conversation_of_structs(nodes: FlowNodes) -> None:
    alpha, beta = await nodes.pair(bargain, haggle)
    answers = await alpha.run(bargain, "beta", 20)
    assert answers == [Offer("tea", 100 + number) for number in range(20)]
    (haggled,) = await beta.until_listed("haggle", FlowStatus.COMPLETED)
    assert await beta.result(haggled.id) == 20


@flow
async def pour(ctx: FlowContext, peer: str, count: int) -> list[int]:
    session = ctx.open_session(peer)
    for number in range(count):
        await session.send(number)
    return [await session.receive(int) for _ in range(count)]


@responder(pour)
async def pour_back(ctx: FlowContext, session: FlowSession) -> list[int]:
    count = 60
    for number in range(count):
        await session.send(-number)
    return [await session.receive(int) for _ in range(count)]


async def test_messages_arrive_in_order_in_both_directions(nodes: FlowNodes) -> None:
    alpha, beta = await nodes.pair(pour, pour_back)
    assert await alpha.run(pour, "beta", 60) == [-number for number in range(60)]
    (poured,) = await beta.until_listed("pour_back", FlowStatus.COMPLETED)
    assert await beta.result(poured.id) == list(range(60))


@flow
async def heap_up(ctx: FlowContext, peer: str) -> list[int]:
    session = ctx.open_session(peer)
    for number in range(12):
        await session.send(number)
    return await session.receive(list[int])


@responder(heap_up)
async def work_off(ctx: FlowContext, session: FlowSession) -> None:
    done = []
    for _ in range(12):
        number = await session.receive(int)
        done.append(await ctx.step(abs, number))
        if number == 5:
            await ctx.wait_for_signal("go", bool)
    await session.send(done)


async def test_messages_that_wait_are_given_once(nodes: FlowNodes) -> None:
    alpha, beta = await nodes.pair(heap_up, work_off)
    handle = await alpha.begin(heap_up, "beta")
    (working,) = await beta.until_listed("work_off", FlowStatus.RUNNING)
    await beta.until_steps(working.id, 12)
    await beta.restart()
    await beta.flows.signal(working.id, "go", True)
    assert await handle.result(DEADLINE_S) == list(range(12))


@flow
async def listen(ctx: FlowContext, peer: str) -> list[str]:
    return [await (session := ctx.open_session(peer)).receive(str), await session.receive(str)]


@responder(listen)
async def speak(ctx: FlowContext, session: FlowSession) -> None:
    await session.send("one")
    await session.send("two")


async def test_a_session_may_begin_by_receiving_and_data_precede_the_end(nodes: FlowNodes) -> None:
    alpha, _ = await nodes.pair(listen, speak)
    assert await alpha.run(listen, "beta") == ["one", "two"]


@flow
async def read_on(ctx: FlowContext, peer: str) -> list[str]:
    session = ctx.open_session(peer)
    texts = []
    try:
        while True:
            texts.append(await session.receive(str))
    except SessionEndedError as ended:
        texts.append(str(ended))
    return texts


@responder(read_on)
async def speak_and_close(ctx: FlowContext, session: FlowSession) -> None:
    await session.send("one")
    await session.close()
    # Once more does no harm.
    await session.close()
    await ctx.wait_for_signal("go", bool)


async def test_a_session_is_closed_before_its_flow_ends(nodes: FlowNodes) -> None:
    alpha, beta = await nodes.pair(read_on, speak_and_close)
    first, last = await alpha.run(read_on, "beta")
    assert first == "one"
    assert "beta has ended this session" in last
    (waiting,) = await beta.until_listed("speak_and_close", FlowStatus.RUNNING)
    await beta.flows.signal(waiting.id, "go", True)
    await beta.until(waiting.id, FlowStatus.COMPLETED)


@flow(version=3, app="shop")
async def ask_who(ctx: FlowContext, peer: str) -> PeerFlowInfo:
    session = ctx.open_session(peer)
    info = await session.peer_info()
    await session.send(True)
    return info


@responder(ask_who, version=5, app="depot")
async def tell_who(ctx: FlowContext, session: FlowSession) -> PeerFlowInfo:
    assert await session.receive(bool)
    return await session.peer_info()


async def test_both_ends_know_the_flow_and_version_of_the_other(nodes: FlowNodes) -> None:
    alpha, beta = await nodes.pair(ask_who, tell_who)
    assert await alpha.run(ask_who, "beta") == PeerFlowInfo("tell_who", 5, "depot")
    (notified,) = await beta.until_listed("tell_who", FlowStatus.COMPLETED)
    assert await beta.result(notified.id) == PeerFlowInfo("ask_who", 3, "shop")


@flow
async def poll(ctx: FlowContext, peers: list[str]) -> list[list[int]]:
    sessions = [ctx.open_session(peer) for peer in peers]
    await ctx.send_all({session: number for number, session in enumerate(sessions)})
    first = await ctx.receive_all(sessions, int)
    second = await ctx.receive_all(reversed(sessions), int)
    return [first, second]


@responder(poll)
async def vote(ctx: FlowContext, session: FlowSession) -> None:
    number = await session.receive(int)
    if number == 0:
        # So that the first to be asked is the last to answer.
        await ctx.sleep(0.05)
    await session.send(number + 10)
    await session.send(number + 20)


async def test_all_at_once_keeps_the_order_of_the_sessions(nodes: FlowNodes) -> None:
    alpha = await nodes.start("alpha", poll)
    await nodes.start("beta", vote)
    await nodes.start("gamma", vote)
    answers = await alpha.run(poll, ["beta", "gamma", "beta"])
    assert answers == [[10, 11, 12], [22, 21, 20]]


@flow
async def listen_to_all(ctx: FlowContext, peers: list[str]) -> list[str]:
    await ctx.send_all({})
    assert await ctx.receive_all([], str) == []
    return await ctx.receive_all([ctx.open_session(peer) for peer in peers], str)


@responder(listen_to_all)
async def say_whom(ctx: FlowContext, session: FlowSession) -> None:
    await session.send(f"to {session.peer}")


async def test_receive_all_opens_sessions(nodes: FlowNodes) -> None:
    alpha, _ = await nodes.pair(listen_to_all, say_whom)
    assert await alpha.run(listen_to_all, ["beta", "alpha"]) == ["to alpha", "to alpha"]


@flow
async def hear_double(ctx: FlowContext, peer: str) -> str:
    session = ctx.open_session(peer)
    try:
        await ctx.receive_all([session, session], str)
    except UsageError as error:
        return str(error)
    return "heard"


async def test_a_session_cannot_be_given_twice(nodes: FlowNodes) -> None:
    assert "a session twice" in await nodes.run(hear_double, "beta")


@flow
async def order(ctx: FlowContext, shop: str, depot: str) -> str:
    session = ctx.open_session(shop)
    return await session.send_and_receive(depot, str)


@responder(order)
async def sell(ctx: FlowContext, session: FlowSession) -> None:
    depot = ctx.open_session(await session.receive(str))
    parcel = await depot.send_and_receive(session.peer, str)
    await session.send(f"{parcel} by {ctx.name}")


@responder(sell)
async def ship(ctx: FlowContext, session: FlowSession) -> None:
    await session.send(f"parcel for {await session.receive(str)}")


async def test_three_parties(nodes: FlowNodes) -> None:
    alpha = await nodes.start("alpha", order)
    await nodes.start("beta", sell)
    await nodes.start("gamma", ship)
    assert await alpha.run(order, "beta", "gamma") == "parcel for alpha by sell"


async def test_a_responder_opens_a_session_back(nodes: FlowNodes) -> None:
    alpha = await nodes.start("alpha", order, ship)
    await nodes.start("beta", sell)
    assert await alpha.run(order, "beta", "alpha") == "parcel for alpha by sell"
    await alpha.until_listed("ship", FlowStatus.COMPLETED)


@flow(version=2)
async def visit(ctx: FlowContext, peer: str) -> list[str]:
    first = await ctx.run_subflow(ping, peer)
    second = await ctx.run_subflow(bargain, peer, 1)
    return [first, second[0].item, await ctx.open_session(peer).send_and_receive("visit", str)]


@responder(visit)
async def receive_visit(ctx: FlowContext, session: FlowSession) -> None:
    await session.receive(str)
    info = await session.peer_info()
    await session.send(f"{info.name} {info.version}")


async def test_a_subflow_opens_sessions_in_its_own_name(nodes: FlowNodes) -> None:
    alpha = await nodes.start("alpha", visit)
    beta = await nodes.start("beta", pong, haggle, receive_visit)
    assert await alpha.run(visit, "beta") == ["Pong", "tea", "visit 2"]
    await beta.until_listed("pong", FlowStatus.COMPLETED)


@flow
async def keep_open(ctx: FlowContext, peer: str) -> str:
    session = ctx.open_session(peer)

    async def talk() -> str:
        return await session.send_and_receive("Ping", str)

    answers = await ctx.gather(talk(), ctx.run_subflow(pass_session, peer))
    return " ".join(answers)


@flow
async def pass_session(ctx: FlowContext, peer: str) -> str:
    return await ctx.open_session(peer).send_and_receive("from below", str)


@responder(keep_open)
async def answer_above(ctx: FlowContext, session: FlowSession) -> None:
    await session.send(f"above: {await session.receive(str)}")


@responder(pass_session)
async def answer_below(ctx: FlowContext, session: FlowSession) -> None:
    await session.send(f"below: {await session.receive(str)}")


async def test_sessions_of_a_flow_and_its_subflow_at_the_same_time(nodes: FlowNodes) -> None:
    alpha, _ = await nodes.pair(keep_open, answer_above, answer_below)
    assert await alpha.run(keep_open, "beta") == "above: Ping below: from below"
