"""Messages in letters: what is written is what is read, and nothing else is taken for one."""

import msgspec
import pytest

from postroad.cells import CellAddress, CellPath
from postroad.cells.delivery.envelope import Envelope, MessageKind
from postroad.cells.delivery.envelope_codec import encode_envelope
from postroad.core.errors import ConfigError, Reject
from postroad.node import ID_HEADER
from postroad.node.content import aged, new_id, path_to, read_message, repeatable_id, write_message
from tests.support.cases import each, naming

QUEUE = "payments"
MESSAGE = Envelope(
    id=b"0123456789abcdef",
    destination=path_to(QUEUE),
    source=CellPath.of("till@S1"),
    session="s",
    headers={"a": "b"},
    content_type="text",
    payload=b"hello",
)


def test_message_is_read_as_it_was_written_until_it_is_too_old() -> None:
    headers = {"a": "b", ID_HEADER: MESSAGE.id.hex()}
    expected = msgspec.structs.replace(MESSAGE, headers=headers)
    body = write_message(MESSAGE)
    assert read_message(body, QUEUE, "S1") == (expected, body)
    assert write_message(MESSAGE) == write_message(MESSAGE)
    full = msgspec.structs.replace(MESSAGE, headers={f"h{number}": "" for number in range(32)})
    with pytest.raises(ConfigError, match="33 headers"):
        write_message(full)
    assert aged(body, MESSAGE, 1_000.0) == (body, None)
    for length in (0, 1, 5, 20):
        with naming(length), pytest.raises(Reject):
            read_message(write_message(MESSAGE)[:length], QUEUE, "S1")
    for lain_s, left_s in ((0.0, 2.0), (0.5, 1.5), (9.0, 0.0), (-1.0, 2.0)):
        limited = msgspec.structs.replace(MESSAGE, ttl_ms=2_000)
        body, ttl_s = aged(write_message(limited), limited, lain_s)
        assert ttl_s == left_s, (lain_s, left_s)
        assert read_message(body, QUEUE, "S1")[0].ttl_ms == round(left_s * 1000), (lain_s, left_s)


@each(
    ({"destination": path_to("others")}, "a message to .*others"),
    ({"destination": CellPath.of("payments@S1")}, "payments@S1"),
    ({"destination": CellPath.of(QUEUE, "on@S1")}, "on@S1"),
    ({"destination": CellPath((CellAddress(QUEUE),), 1)}, "is no message to queue 'payments'"),
    ({"kind": MessageKind.REPLY, "in_reply_to": bytes(16)}, "a reply to"),
    ({"kind": MessageKind.ERROR, "in_reply_to": bytes(16)}, "an error to"),
)
def test_what_is_no_message_to_the_queue_is_rejected(change: dict[str, object], words: str) -> None:
    body = encode_envelope(msgspec.structs.replace(MESSAGE, **change))
    with pytest.raises(Reject, match=words):
        read_message(body, QUEUE, "S1")


def test_ids_differ_unless_the_message_is_the_same() -> None:
    ids = [
        new_id(),
        new_id(),
        repeatable_id("S1", QUEUE, "1"),
        repeatable_id("S1", QUEUE, "2"),
        repeatable_id("S2", QUEUE, "1"),
        repeatable_id("S1", "others", "1"),
    ]
    assert len(set(ids)) == len(ids)
    assert {len(id) for id in ids} == {16}
    assert repeatable_id("S1", QUEUE, "1") == repeatable_id("S1", QUEUE, "1")


@each(
    ("till@S1", "S1", "till@S1"),
    ("a@S2:till@S1", "S1", "till@S1"),
    ("till", "S1", "till@S1"),
    ("treasurer@S1", "E1", "Guarantees@E1"),
    ("treasurer@S1:*@S1", "E1", "Guarantees@E1"),
    ("treasurer:*@S1", "E1", "Guarantees@E1"),
    ("till@E1:treasurer@S1", "E1", "Guarantees@E1"),
    ("*@E1", "E1", "Guarantees@E1"),
    ("", "E1", "Guarantees@E1"),
    (":".join(["a@S1"] * 64), "E1", "Guarantees@E1"),
)
def test_the_sender_is_a_cell_of_the_node_that_sent_the_letter(
    source: str, node: str, sender: str
) -> None:
    written = write_message(msgspec.structs.replace(MESSAGE, source=CellPath.parse(source)))
    envelope, body = read_message(written, QUEUE, node)
    assert str(envelope.source.sender) == sender
    assert read_message(body, QUEUE, node) == (envelope, body)
    assert (body == written) == (source in ("till@S1", "a@S2:till@S1"))


def test_a_message_can_be_passed_on_for_ever() -> None:
    body = write_message(MESSAGE)
    for number in range(200):
        envelope, body = read_message(body, QUEUE, f"S{number % 3}")
        assert len(envelope.source) <= 31
