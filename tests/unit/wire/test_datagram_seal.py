"""Sealed datagrams: proven, for one process, and taken once."""

from __future__ import annotations

from itertools import count

import pytest

from postroad.core.cluster_secret import ClusterSecret
from postroad.core.errors import HandshakeRejectedError, MalformedFrameError
from postroad.core.names import Address
from postroad.wire import datagram
from postroad.wire.datagram import MARK, SEAL_BYTES, Seal, Unsealed

SECRET = ClusterSecret("demo", "correct horse battery staple")
A, B, C = (Address("10.0.0.1", port) for port in (1, 2, 3))
NOW = 1_000.0
_epochs = count(1)


def make_seal(secret: ClusterSecret = SECRET) -> Seal:
    return Seal(secret, next(_epochs).to_bytes(32, "little"))


def introduce(sender: Seal, receiver: Seal, target: Address = B, source: Address = A) -> bytes:
    """Have the sender learn the receiver's epoch; returns the first message, sealed."""
    question = sender.seal(target, b"first", NOW)
    unsealed = receiver.open(question, source, NOW)
    assert unsealed.body is None
    assert unsealed.answer is not None
    released = sender.open(unsealed.answer, target, NOW)
    assert released == Unsealed(target=target, held=(b"first",))
    return sender.seal(target, b"first", NOW)


def test_a_message_arrives_after_a_question_no_longer_than_its_answer() -> None:
    alpha, beta = make_seal(), make_seal()
    question = alpha.seal(B, b"x" * 500, NOW)
    answer = beta.open(question, A, NOW).answer
    assert answer is not None
    assert len(question) == len(answer) == SEAL_BYTES
    assert alpha.open(answer, B, NOW).held == (b"x" * 500,)
    message = alpha.seal(B, b"x", NOW)
    assert len(message) == SEAL_BYTES + 1
    assert beta.open(message, A, NOW) == Unsealed(body=b"x")
    # From then on the other knows whom it answers.
    assert alpha.open(beta.seal(A, b"y", NOW), B, NOW) == Unsealed(body=b"y")


def test_a_message_is_taken_once_in_any_order() -> None:
    alpha, beta = make_seal(), make_seal()
    messages = [introduce(alpha, beta)]
    messages += [alpha.seal(B, b"%d" % number, NOW) for number in range(5)]
    for index in (3, 0, 5, 1):
        assert beta.open(messages[index], A, NOW).body is not None
        with pytest.raises(HandshakeRejectedError, match="was received before"):
            beta.open(messages[index], C, NOW)
    assert beta.open(messages[4], A, NOW).body == b"3"
    late = [alpha.seal(B, b"", NOW) for _ in range(300)]
    assert beta.open(late[-1], A, NOW).body == b""
    for old in (messages[2], late[0]):
        with pytest.raises(HandshakeRejectedError, match="was received before"):
            beta.open(old, A, NOW)


def test_recorded_datagram_is_refused_by_another_process() -> None:
    alpha, beta, other = make_seal(), make_seal(), make_seal()
    message = introduce(alpha, beta)
    for receiver in (other, make_seal(), alpha):
        unsealed = receiver.open(message, A, NOW)
        assert unsealed.body is None
        assert unsealed.answer is not None
        assert len(unsealed.answer) < len(message)
    # Not even to the next process of the same node, which the sender then learns of.
    again = make_seal()
    unsealed = again.open(alpha.seal(B, b"lost", NOW), A, NOW)
    assert unsealed.answer is not None
    assert alpha.open(unsealed.answer, B, NOW) == Unsealed(target=B)
    assert again.open(alpha.seal(B, b"anew", NOW), A, NOW).body == b"anew"


def test_an_old_answer_does_not_bring_back_an_old_epoch() -> None:
    alpha, beta = make_seal(), make_seal()
    question = alpha.seal(B, b"", NOW)
    old = beta.open(question, A, NOW).answer
    assert old is not None
    alpha.open(old, B, NOW)
    again = make_seal()
    new = again.open(alpha.seal(B, b"", NOW), A, NOW).answer
    assert new is not None
    alpha.open(new, B, NOW)
    assert alpha.open(old, B, NOW) == Unsealed()
    assert again.open(alpha.seal(B, b"x", NOW), A, NOW).body == b"x"


def test_an_answer_to_another_or_to_nothing_is_not_believed() -> None:
    alpha, beta, other = make_seal(), make_seal(), make_seal()
    answer = beta.open(other.seal(B, b"", NOW), A, NOW).answer
    assert answer is not None
    alpha.seal(B, b"held", NOW)
    assert alpha.open(answer, B, NOW) == Unsealed()
    assert make_seal().open(answer, B, NOW) == Unsealed()


def test_seal_queued_datagrams_too_old_or_too_many_are_dropped() -> None:
    alpha, beta = make_seal(), make_seal()
    alpha.seal(B, b"old", NOW)
    questions = [alpha.seal(B, b"%d" % number, NOW + 9) for number in range(20)]
    answer = beta.open(questions[-1], A, NOW + 10).answer
    assert answer is not None
    held = alpha.open(answer, B, NOW + 10).held
    assert held == tuple(b"%d" % number for number in range(12, 20))
    alpha.seal(C, b"old", NOW)
    answer = beta.open(alpha.seal(C, b"new", NOW + 3), A, NOW + 3).answer
    assert answer is not None
    assert alpha.open(answer, C, NOW + 3).held == (b"new",)


def test_seal_open_without_a_valid_proof_is_rejected(subtests: pytest.Subtests) -> None:
    alpha, beta = make_seal(), make_seal()
    message = introduce(alpha, beta)
    stranger = make_seal(ClusterSecret("demo", "another secret of some length"))
    for data in (b"", b"\x95plain", bytes([MARK]), message[: SEAL_BYTES - 1]):
        with subtests.test(data=data), pytest.raises(HandshakeRejectedError, match="has no proof"):
            beta.open(data, A, NOW)
    for index in (1, 2, 20, 40, len(message) - 40, len(message) - 1):
        changed = bytearray(message)
        changed[index] ^= 1
        with (
            subtests.test(index=index),
            pytest.raises(HandshakeRejectedError, match="another secret"),
        ):
            beta.open(bytes(changed), A, NOW)
    with pytest.raises(HandshakeRejectedError, match="another secret"):
        beta.open(stranger.seal(B, b"x", NOW), A, NOW)
    assert beta.open(message, A, NOW).body == b"first"
    unknown = alpha._prove(9, bytes(16), 1)  # type: ignore[arg-type]  # a kind of later nodes
    with pytest.raises(MalformedFrameError, match="unknown kind 9"):
        beta.open(unknown, A, NOW)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datagram, "_PEERS_MAX", 3)
    alpha, beta = make_seal(), make_seal()
    for port in range(1, 9):
        alpha.seal(Address("10.0.0.1", port), b"x", NOW)
    assert len(alpha._peers) == 3
    for port in range(1, 9):
        sender = make_seal()
        at = Address("10.0.0.9", port)
        beta.open(introduce(sender, beta, source=at), at, NOW)
    assert len(beta._peers) == len(beta._windows) == 3
