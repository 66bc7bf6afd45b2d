"""What NATS servers say, for tests: told to a parser, and remembered."""

from postroad.services.transporters.nats_protocol import NatsParser, ServerInfo


class Heard:
    """Remembers all that a parser tells."""

    def __init__(self) -> None:
        self.all: list[object] = []

    def message(self, sid: bytes, data: bytes) -> None:
        self.all.append((sid, data))

    def info(self, info: ServerInfo) -> None:
        self.all.append(info)

    def ping(self) -> None:
        self.all.append("ping")

    def pong(self) -> None:
        self.all.append("pong")

    def error(self, text: str) -> None:
        self.all.append(f"error {text}")


def heard_of(*pieces: bytes) -> list[object]:
    """What a parser tells of these, one after the other."""
    heard = Heard()
    parser = NatsParser(heard)
    for piece in pieces:
        parser.feed(piece)
    return heard.all


def message(sid: bytes, data: bytes, subject: bytes = b"MOL.INFO") -> bytes:
    """A message as servers send it."""
    return b"MSG %b %b %d\r\n%b\r\n" % (subject, sid, len(data), data)
