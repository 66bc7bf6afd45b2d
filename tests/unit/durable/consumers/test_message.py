"""What a handler sees of a message."""

from postroad.durable import Message
from postroad.durable.consumers.dispatch_order import PrefetchBuffer, QueuedMessage
from tests.support.durable.nodes import NOW_MS, SENDER, make_aside, make_letter, make_page


def entry_of(shelf: PrefetchBuffer) -> QueuedMessage:
    entry = shelf.pop_next(lambda: NOW_MS)
    assert entry is not None
    return entry


def test_message_has_metadata_and_failure_count() -> None:
    shelf = PrefetchBuffer(is_ordered=True, blocked={})
    letter = make_letter(
        255, body=b"12345", key="k", headers={"a": "b"}, reply_to="answers", in_reply_to=9
    )
    shelf.add_batch(make_page([letter]))
    message = Message(entry_of(shelf))
    assert (message.id, message.queue, message.body) == (255, "orders", b"12345")
    assert (message.sender, message.key, message.headers) == (SENDER, "k", {"a": "b"})
    assert (message.reply_to, message.in_reply_to, message.priority) == ("answers", 9, 0)
    assert message.sent_at == message.received_at == NOW_MS / 1000
    assert message.attempt == 1
    assert repr(message) == "<Message ff from gamma to 'orders', 5 bytes>"
    shelf = PrefetchBuffer(is_ordered=True, blocked={})
    shelf.add_deferred(make_aside(make_letter(priority=3), 1, failures=2))
    message = Message(entry_of(shelf))
    assert (message.attempt, message.priority, message.headers) == (3, 3, {})
