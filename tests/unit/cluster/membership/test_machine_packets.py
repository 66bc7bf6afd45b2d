"""What a machine answers to each packet."""

import pytest

from postroad.cluster.membership import Phase, State
from postroad.cluster.membership.packets import (
    Ack,
    Nack,
    News,
    Packet,
    Ping,
    PingRequest,
    Pull,
    Sync,
    SyncRequest,
)
from postroad.cluster.membership.records import CLAIM_MAX
from tests.support.cluster.membership import (
    START,
    address_of,
    ask,
    instance_of,
    join_alone,
    make_cluster,
    make_machine,
    make_record,
    take_said,
    tell,
)


def test_a_ping_is_answered_with_who_is_here_and_a_stranger_is_asked_back() -> None:
    machine = join_alone()
    answer = ask(machine, Ping(number=7, name="b", instance=1))
    assert isinstance(answer, Ack)
    assert (answer.number, answer.name, answer.instance) == (7, "a", instance_of("a"))
    (said,) = take_said(machine)
    assert said.address == address_of("b")
    assert isinstance(said.packet, SyncRequest)


@pytest.mark.parametrize("state", [State.SUSPECT, State.DEAD])
def test_who_pings_and_is_doubted_hears_of_it(state: State) -> None:
    machine = join_alone()
    doubt = make_record("b", state, witness="c")
    tell(machine, doubt, now=START)
    answer = ask(machine, Ping(number=7, name="b", instance=instance_of("b")))
    assert isinstance(answer, Ack)
    assert doubt in answer.news


def test_a_pull_is_answered_with_the_own_record_and_outnumbers_versions_it_never_had() -> None:
    machine = join_alone()
    answer = ask(machine, Pull(version=0, instance=instance_of("a")))
    assert answer == News(news=[make_record("a")])
    earlier_process = Pull(version=99, instance=instance_of("a", start=-1))
    assert ask(machine, earlier_process) == answer
    machine.set_properties({"role": "x"}, START)
    answer = ask(machine, Pull(version=99, instance=instance_of("a")))
    assert answer == News(news=[make_record("a", version=100, properties={"role": "x"})])
    assert ask(machine, Pull(version=99, instance=instance_of("a"))) == answer, "once is enough"


@pytest.mark.parametrize("version", [-1, CLAIM_MAX + 1, 2**64 - 1])
def test_a_pull_of_a_version_out_of_range_gets_no_answer(version: int) -> None:
    machine = join_alone()
    assert ask(machine, Pull(version=version, instance=instance_of("a"))) is None
    assert machine.own.version == 0


@pytest.mark.parametrize("is_member", [True, False])
def test_answers_tell_whether_this_node_is_a_member(is_member: bool) -> None:
    machine = make_machine("a")
    machine.start(START)
    if is_member:
        machine.set_contacts([], START)
    ack = ask(machine, Ping(number=7, name="b", instance=1))
    sync = ask(machine, SyncRequest(number=8, digest=b""))
    assert isinstance(ack, Ack)
    assert isinstance(sync, Sync)
    assert ack.is_member is sync.is_member is is_member
    assert ack.farewell == make_record("a").farewell


def test_a_machine_that_joins_answers_but_does_not_speak_of_itself() -> None:
    machine = make_machine("a")
    machine.start(START)
    assert ask(machine, Pull(version=0, instance=instance_of("a"))) is None
    answer = ask(machine, SyncRequest(number=3, digest=b""))
    assert isinstance(answer, Sync)
    assert answer.news == []
    assert isinstance(ask(machine, Ping(number=7, name="b", instance=1)), Ack)
    ask(machine, Sync(number=1, agrees=True, name="b", instance=1, is_member=True))
    assert machine.phase is Phase.JOINING


@pytest.mark.parametrize(
    "packet",
    [
        Ack(number=1, name="b", instance=1, farewell=b"f", incarnation=0, is_member=True),
        Nack(number=1),
        News(),
        PingRequest(number=1, target="b"),
        Sync(number=1, agrees=False, name="b", instance=1, is_member=True),
    ],
    ids=lambda packet: type(packet).__name__,
)
def test_what_nobody_asked_for_gets_no_answer(packet: Packet) -> None:
    assert ask(join_alone(), packet) is None


def test_news_go_to_suspects_too_and_many_of_them_by_stream() -> None:
    machine = join_alone()
    suspected = make_record("b", State.SUSPECT, witness="c")
    tell(machine, suspected, now=START)
    machine.tick(START)
    (said,) = [it for it in take_said(machine) if isinstance(it.packet, News)]
    assert said.address == address_of("b")
    assert suspected in said.packet.news

    wire, machines = make_cluster("a", "b")
    for number in range(100):
        tell(machines["a"], make_record(f"node-{number}"), now=wire.clock())
    machines["a"].tick(wire.clock())
    first, *_ = [it for it in take_said(machines["a"]) if isinstance(it.packet, News)]
    assert first.is_stream
    assert len(first.packet.news) == 100


def test_packets_are_counted() -> None:
    _wire, machines = make_cluster("a", "b")
    ours, theirs = machines["a"].counters, machines["b"].counters
    assert ours.packets_sent == theirs.packets_received > 0
    assert ours.bytes_sent == theirs.bytes_received > 0
    assert ours.probes > 0
    assert ours.refused == {}
