"""Stores restored from a backup: refused with the right words, and mended by a new epoch."""

import pytest

from postroad.durable.bridges import bridge
from postroad.durable.bridges.protocol import StreamAck
from postroad.durable.store.tables.rows import PeerState
from postroad.testing import LivenessFailure, SimCluster
from tests.simulation.durable.pair import Pair

SENDER_RESTORED = "this node's store is an old copy"
RECEIVER_RESTORED = "its store is an old copy"
DIVERGED = "is not the one that was delivered there"


def restore_sender(pair: Pair) -> None:
    pair.post("a", "b")
    pair.await_handled("a", "b")
    backup = pair.backup(pair.alpha)
    pair.post("c", "d")
    pair.await_handled("a", "b", "c", "d")
    pair.restart(pair.alpha, backup)


def start_epoch(pair: Pair) -> int:
    return pair.sim.run(pair.mail.bridges.start_epoch("beta"), pair.alpha.node)


def test_sender_that_forgot_is_refused() -> None:
    with SimCluster(1) as sim:
        pair = Pair(sim)
        restore_sender(pair)
        pair.post("e")
        pair.await_trouble(SENDER_RESTORED)
        assert pair.handled() == ["a", "b", "c", "d"]

        assert start_epoch(pair) == 1
        pair.await_handled("a", "b", "c", "d", "e")
        pair.post("f")
        pair.await_handled("a", "b", "c", "d", "e", "f")


def test_sender_that_forgot_and_posted_as_many_is_refused() -> None:
    with SimCluster(2) as sim:
        pair = Pair(sim)
        restore_sender(pair)
        # Beta must not hear of the first of them alone.
        sim.network.partition("alpha", "beta")
        pair.post("e", "f", "g")
        sim.network.heal()
        pair.await_trouble(DIVERGED)
        assert pair.handled() == ["a", "b", "c", "d"]

        assert start_epoch(pair) == 3
        pair.await_handled("a", "b", "c", "d", "e", "f", "g")


def test_receiver_that_forgot_is_refused() -> None:
    with SimCluster(3) as sim:
        pair = Pair(sim)
        pair.post("a", "b")
        pair.await_handled("a", "b")
        backup = pair.backup(pair.beta)
        pair.post("c", "d")
        pair.await_handled("a", "b", "c", "d")
        pair.restart(pair.beta, backup)
        pair.post("e")
        pair.await_trouble(RECEIVER_RESTORED)
        assert pair.handled() == ["a", "b"]

        assert start_epoch(pair) == 1
        pair.await_handled("a", "b", "e")


def test_old_copy_of_a_receiver_that_lacks_nothing_goes_on() -> None:
    with SimCluster(4) as sim:
        pair = Pair(sim)
        pair.post("a", "b")
        pair.await_handled("a", "b")
        pair.restart(pair.beta, pair.backup(pair.beta))
        pair.post("c")
        pair.await_handled("a", "b", "c")


def test_new_epoch_survives_a_crash() -> None:
    with SimCluster(5) as sim:
        pair = Pair(sim)
        restore_sender(pair)
        pair.post("e")
        pair.await_trouble(SENDER_RESTORED)
        start_epoch(pair)
        pair.restart(pair.alpha)
        pair.await_handled("a", "b", "c", "d", "e")


def test_stories_need_the_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    def trust(peer: PeerState, answer: StreamAck, chain_here: bytes | None) -> None:
        """Compare nothing."""

    monkeypatch.setattr(bridge, "check_stream_consistency", trust)
    for story in (
        test_sender_that_forgot_is_refused,
        test_sender_that_forgot_and_posted_as_many_is_refused,
        test_receiver_that_forgot_is_refused,
    ):
        with pytest.raises(LivenessFailure):
            story()
