"""What may be in the mail of flows and is no letter of a flow: each of it ends as a dead letter."""

from __future__ import annotations

from postroad.flows.messages import (
    Confirm,
    Data,
    Initial,
    Letter,
    Message,
    SessionKey,
    encode_letter,
)

_KEY = SessionKey(1, 1)


def garbage_of(number: int) -> list[bytes]:
    """All kinds of it, none of it like that of another number."""
    word = f"garbage {number}"
    data = Data(word.encode())
    opening = Initial("pay", 1, "")
    return [
        word.encode(),
        _letter(SessionKey(0, number), data),
        _letter(SessionKey(1 << 63, number), data),
        _letter(SessionKey(1, 1 << 31), data),
        _letter(SessionKey(1, number)),
        _letter(_KEY, data, opening),
        _letter(_KEY, opening, data, is_for_initiator=True),
        _letter(_KEY, Initial("", number + 1, "")),
        _letter(_KEY, Confirm("\n", number + 1, "")),
        encode_letter(Letter(_KEY, False, [data]))[:-1],
    ]


def _letter(key: SessionKey, *messages: Message, is_for_initiator: bool = False) -> bytes:
    return encode_letter(Letter(key, is_for_initiator, list(messages)))
