"""What reaches a pipeline from outside: segments, questions of Spark's processes, JetStream."""

from __future__ import annotations

from fuzz.target import Target, prefixes, require
from postroad.core.errors import MalformedPayloadError
from postroad.pipeline.connectors.connector import UndecodableRecord
from postroad.pipeline.connectors.jetstream.client import JetStreamError, read_answer
from postroad.pipeline.connectors.options import CODECS
from postroad.pipeline.coordinator.records import decode_or_reject
from postroad.pipeline.spark.coordinator_client import (
    PlanPartitions,
    PollDeliveries,
    encode,
    read_question,
)


def check_segment(data: bytes) -> None:
    """Any bytes are a segment, or kept as what cannot be one."""
    for decoder in CODECS.values():
        segment = decode_or_reject(data, decoder)
        is_kept = isinstance(segment, UndecodableRecord) and segment.raw == data
        require(is_kept or isinstance(segment, dict), f"{segment!r} is neither")


def check_question(data: bytes) -> None:
    """Any bytes are a question for a desk, or malformed."""
    for part in (*prefixes(data), data):
        try:
            written = encode(read_question(part))
            require(encode(read_question(written)) == written, "another question")
        except MalformedPayloadError:
            continue


def check_jetstream(data: bytes) -> None:
    """Any bytes are an answer of JetStream, a refusal, or none."""
    for part in (*prefixes(data), data):
        try:
            read_answer(part, "nats://127.0.0.1")
        except (JetStreamError, OSError):
            continue


TARGETS = [
    Target("pipeline-segment", check_segment, [b'{"amount": 1}', b"\x81\xa6amount\x01"]),
    Target(
        "pipeline-question",
        check_question,
        [encode(PollDeliveries(3, 0.5)), encode(PlanPartitions(1, 9))],
    ),
    Target(
        "pipeline-jetstream",
        check_jetstream,
        [
            b'{"config": {}, "state": {"messages": 1}}',
            b'{"error": {"code": 404, "description": "no"}}',
        ],
    ),
]
