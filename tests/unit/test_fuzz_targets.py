"""The fuzz targets without atheris: valid inputs, random changes to them, and planted bugs."""

import zlib
from collections.abc import Callable, Iterator
from random import Random

import msgspec
import pytest

from fuzz.__main__ import main
from fuzz.campaign import _read_result
from fuzz.mutation import mutate
from fuzz.replay import find_error, shrink
from fuzz.target import BrokenInvariant, Target
from fuzz.targets import TARGETS
from fuzz.terminal import render_table
from postroad.cluster.membership import TRANSITIONS, MemberState, StateChangeCause
from postroad.cluster.membership import gossip as packets
from postroad.cluster.membership import member_table as roster
from postroad.core.errors import Reject
from postroad.durable import stored_messages
from postroad.durable.bridges.protocol import NewBatch, StreamWindow
from postroad.flows.sessions import messages
from postroad.wire import Frame, WireConnection, datagram
from postroad.wire import heartbeats as sbe
from postroad.wire.codecs import DocumentedCodec, Version3Codec, legacy, zeebe
from postroad.wire.compression import ZlibCompression
from postroad.wire.frame_reader import FrameReader
from tests.support.tiers import by_tier, seed_for

MUTATIONS = by_tier(test=100, nightly=5_000)
# JSON, MsgPack and CBOR deeper than any recursion goes.
NESTED = [opening * 3_000 for opening in (b"[", b'{"a":', b"\x91", b"\x81\xa1a", b"\x81\x61a")]
FIRST_LINE = "#1241\tDONE   cov: 141 ft: 336 corp: 9/68b lim: 17 exec/s: 0 rss: 44Mb\n"


def inputs(target: Target, mutations: int = MUTATIONS) -> Iterator[bytes]:
    """The seeds, and random changes to them; the same in every run with the same seed."""
    yield from target.seeds
    yield from NESTED
    rng = Random(seed_for(target.name))
    for _ in range(mutations):
        yield mutate(rng, rng.choice(target.seeds))


def find_failure(target: Target) -> BaseException | None:
    """The first error that any of the inputs provokes."""
    errors = (find_error(target, data) for data in inputs(target, mutations=5_000))
    return next((error for error in errors if error is not None), None)


@pytest.mark.parametrize("name", TARGETS)
def test_invariant_holds(name: str) -> None:
    for data in inputs(TARGETS[name]):
        TARGETS[name].check(data)


# The harness finds what it is there for.

Plant = Callable[[pytest.MonkeyPatch], None]


def plant_foreign_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(data: bytes, what: str, request_id: int | None = None) -> str:
        return str(data, "utf-8")

    monkeypatch.setattr(legacy, "decode_utf8", decode)


def plant_byte_lost_at_split(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = FrameReader.feed

    def forgetful(reader: FrameReader, data: bytes) -> list[Frame]:
        frames = feed(reader, data)
        if len(reader.rest) == 2:
            reader.rest.pop()
        return frames

    monkeypatch.setattr(FrameReader, "feed", forgetful)


def plant_wait_for_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    decode = DocumentedCodec.decode

    def greedy(self: DocumentedCodec, data: bytes, frames: list[Frame]) -> int:
        consumed = decode(self, data, frames)
        self.bytes_needed += 2
        return consumed

    monkeypatch.setattr(DocumentedCodec, "decode", greedy)


def plant_borrowed_payload(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_copy(data: bytes | bytearray | memoryview) -> bytes | memoryview:
        return data if isinstance(data, memoryview) else bytes(data)

    monkeypatch.setattr("postroad.wire.frame_reader.bytes", without_copy, raising=False)


def plant_changed_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zeebe, "encode_varint64", lambda value: bytes([value & 0x7F]))


def plant_bomb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroad.wire.compression.check_frame_size", lambda size, maximum: None)


def plant_unchecked_length(monkeypatch: pytest.MonkeyPatch) -> None:
    init = Version3Codec.__init__

    def boundless(self: Version3Codec, frame_bytes_max: int) -> None:
        init(self, 2**32)

    monkeypatch.setattr(Version3Codec, "__init__", boundless)


def plant_unmapped_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def decompress(self: ZlibCompression, data: bytes, size: int) -> bytes:
        return zlib.decompressobj().decompress(data, size + 1)

    monkeypatch.setattr(ZlibCompression, "decompress", decompress)


def plant_short_struct(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sbe, "_body", lambda payload, template, minimum: payload[8:])


def plant_unchecked_port(monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(preamble: bytes, data: bytes) -> datagram.Datagram:
        return datagram._decoder.decode(data[8:])

    monkeypatch.setattr("fuzz.targets.datagram.decode_datagram", decode)


def plant_lawless_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    from postroad.wire import connection
    from postroad.wire import frame_rules as legality

    monkeypatch.setattr(connection, "frame_action", lambda *situation: legality.FrameAction.ACCEPT)


def plant_illegal_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: WireConnection, error: Exception) -> None:
        self.outgoing.append(b"\xff" * 20)
        original(self, error)  # type: ignore[arg-type]  # The machine passes the right kind.

    original = WireConnection.reject
    monkeypatch.setattr(WireConnection, "reject", fail)


def plant_unmapped_packet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "fuzz.targets.membership.decode_packet",
        lambda data, *, records_max: packets._decoder.decode(data),
    )


def plant_credulous_roster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster, "is_authentic_leave", lambda record, farewell: True)


def plant_belief_in_deaths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        TRANSITIONS, (MemberState.ALIVE, StateChangeCause.GOSSIP_DEAD), MemberState.DEAD
    )


def plant_unmapped_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuzz.targets.durable.decode_batch", stored_messages._batch_decoder.decode)


def plant_boundless_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(page: bytes) -> list[stored_messages.StoredMessage]:
        found = stored_messages.decode_batch(page)
        return [msgspec.structs.replace(it, deliver_at_ms=it.deliver_at_ms << 62) for it in found]

    monkeypatch.setattr("fuzz.targets.durable.decode_batch", decode)
    monkeypatch.setattr("fuzz.targets.durable.validate_message", lambda *arguments: None)


def plant_credulous_intake(monkeypatch: pytest.MonkeyPatch) -> None:
    def new_batches(watermark: int, chain: bytes, window: StreamWindow) -> list[NewBatch]:
        return [NewBatch(window.first, page, True) for page in window.batches]

    monkeypatch.setattr("fuzz.targets.durable.new_batches", new_batches)


def plant_unmapped_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuzz.targets.flows.decode_session_envelope", messages._decoder.decode)


def plant_session_of_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(body: bytes) -> messages.SessionEnvelope:
        try:
            return messages._decoder.decode(body)
        except (msgspec.DecodeError, ValueError):
            raise Reject("no letter") from None

    monkeypatch.setattr("fuzz.targets.flows.decode_session_envelope", decode)


@pytest.mark.parametrize(
    ("name", "plant", "error"),
    [
        ("codec-documented-2", plant_foreign_exception, UnicodeDecodeError),
        ("codec-3-plain", plant_byte_lost_at_split, BrokenInvariant),
        ("codec-documented-1", plant_wait_for_too_much, BrokenInvariant),
        ("codec-zeebe-2", plant_borrowed_payload, BrokenInvariant),
        ("codec-zeebe-1", plant_changed_reply, BrokenInvariant),
        ("codec-3-plain", plant_unchecked_length, BrokenInvariant),
        ("compression-zstd", plant_bomb, BrokenInvariant),
        ("compression-zlib", plant_unmapped_error, zlib.error),
        ("sbe-setup-response", plant_short_struct, IndexError),
        ("datagram", plant_unchecked_port, Exception),
        ("connection-documented-fresh-server", plant_lawless_machine, BrokenInvariant),
        ("connection-documented-3-server", plant_illegal_answer, BrokenInvariant),
        ("connection-zeebe-2-client", plant_byte_lost_at_split, BrokenInvariant),
        ("membership-packet", plant_unmapped_packet, msgspec.DecodeError),
        ("membership-machine", plant_credulous_roster, BrokenInvariant),
        ("membership-machine", plant_belief_in_deaths, BrokenInvariant),
        ("durable-page", plant_unmapped_page, msgspec.DecodeError),
        ("durable-page", plant_boundless_letter, BrokenInvariant),
        ("durable-intake", plant_credulous_intake, BrokenInvariant),
        ("flows-letter", plant_unmapped_letter, msgspec.DecodeError),
        ("flows-letter", plant_session_of_nobody, BrokenInvariant),
    ],
)
def test_planted_bug_is_found(
    monkeypatch: pytest.MonkeyPatch, name: str, plant: Plant, error: type[Exception]
) -> None:
    plant(monkeypatch)
    assert isinstance(find_failure(TARGETS[name]), error)


# The command line.


def fragile(data: bytes) -> None:
    if b"\x07" in data:
        raise KeyError(data)


@pytest.fixture
def fragile_target(monkeypatch: pytest.MonkeyPatch) -> Target:
    target = Target("fragile", fragile, [b"seed"])
    monkeypatch.setitem(TARGETS, "fragile", target)
    return target


def test_crashing_input_is_made_small(fragile_target: Target) -> None:
    assert shrink(fragile_target, bytes(range(200))) == b"\x07"
    assert shrink(fragile_target, b"harmless") == b"harmless"


def test_replay_of_a_crash(fragile_target: Target, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fragile", "--replay", "0107"]) == 1
    told = capsys.readouterr().out
    assert "KeyError" in told
    assert "python -m fuzz fragile --replay 0107" in told


def test_replay_of_a_harmless_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hello", "--replay", ""]) == 0
    assert "does no harm" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["--replay", "00"], ["hello", "--replay", "0"]]
)
def test_wrong_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(arguments)
    assert exit_info.value.code == 2
    assert "usage" in capsys.readouterr().err


def test_result_is_read_from_the_output() -> None:
    output = f"{FIRST_LINE}stat::number_of_executed_units: 1241\n"
    sound = _read_result("hello", 0, output, None)
    broken = _read_result("sbe", 77, output, b"\x07")
    failed = _read_result("datagram", 1, "Traceback", None)

    assert (sound.executions, sound.edges, sound.features) == (1241, 141, 336)
    assert [result.verdict for result in (sound, broken, failed)] == ["ok", "CRASH", "FAILED"]
    assert render_table([sound, broken]).splitlines()[2:] == [
        "hello         1,241    141       336  ok",
        "sbe           1,241    141       336  CRASH",
    ]
