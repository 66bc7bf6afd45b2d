"""What a recorder keeps, and for how long."""

import sys
from collections.abc import Iterator

import msgspec
import pytest

from postroad.core import tracing
from postroad.core.errors import ConfigError, UsageError
from postroad.core.tracing import NOOP_SPAN, Span, SpanContext, SpanKind
from postroad.node.tracing import Recorder, SpanRecord, TracingConfig
from tests.support.cases import naming

PARENT = SpanContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", 1, "vendor=1")


@pytest.fixture(autouse=True)
def _nobody_is_left() -> Iterator[None]:
    assert tracing.tracer is None
    yield
    assert tracing.tracer is None


async def test_span_is_remembered_with_all_that_is_known() -> None:
    async with Recorder("alpha") as recorder:
        with tracing.start_incoming_span(
            "net", "x", PARENT, SpanKind.SERVER, node="alpha", peer="beta"
        ) as span:
            span.set_attribute("attempt", 2)
    (found,) = recorder.recent()
    assert found.trace_id == PARENT.trace_id and found.parent_id == PARENT.span_id
    assert (found.name, found.kind, found.layer) == ("x", SpanKind.SERVER, "net")
    assert (found.node, found.peer, found.attributes) == ("alpha", "beta", {"attempt": 2})
    assert found.is_ok and found.code == 0 and found.links == []
    assert found.duration_s > 0
    assert recorder.spans(PARENT.trace_id) == [found]
    assert recorder.spans("0" * 32) == []
    assert msgspec.json.decode(msgspec.json.encode(found), type=SpanRecord) == found


async def test_newest_spans_are_kept_with_ids_of_their_own() -> None:
    async with Recorder("alpha"):
        context = tracing.start_incoming_span("net", "x", PARENT, node="alpha").context
    assert context is not None and context.tracestate == "vendor=1"
    async with Recorder("alpha") as recorder:
        for _ in range(100):
            tracing.start_outgoing_span("net", "x", node="alpha").end()
    spans = recorder.recent(1_000)
    assert len({it.trace_id for it in spans}) == len({it.span_id for it in spans}) == 100
    assert all(it.parent_id is None for it in spans)
    async with Recorder("alpha", TracingConfig(keep_spans=5)) as recorder:
        for number in range(12):
            tracing.start_outgoing_span("net", f"{number}", node="alpha").end()
    assert [it.name for it in recorder.recent()] == ["11", "10", "9", "8", "7"]
    assert [it.name for it in recorder.recent(2)] == ["11", "10"]
    assert recorder.recent(0) == recorder.recent(-1) == []
    assert recorder.recorded == 12
    assert repr(recorder) == "<Recorder of alpha: 5 of 12 spans>"


async def test_no_span_takes_much_memory() -> None:
    async with Recorder("alpha") as recorder:
        links = [PARENT] * 1_000
        span = tracing.start_incoming_span(
            "net", "n" * 10_000, PARENT, node="alpha", peer="p" * 10_000, links=links
        )
        for number in range(1_000):
            span.set_attribute(f"{number:04}" * 1_000, "v" * 10_000)
        span.end(ValueError("e" * 10_000))
    (found,) = recorder.recent()
    assert found.error is not None
    texts = [found.name, found.peer, found.error, *found.attributes]
    texts += [it for it in found.attributes.values() if isinstance(it, str)]
    assert max(map(len, texts)) <= 256
    assert len(found.attributes) == 16 and len(found.links) == 32


async def test_who_began_a_trace_decides_whether_it_is_recorded() -> None:
    unsampled = msgspec.structs.replace(PARENT, flags=0)
    async with Recorder("alpha", TracingConfig(sample=0.0)) as recorder:
        with tracing.start_outgoing_span("net", "own", node="alpha") as own:
            assert own.context is not None and not own.context.is_sampled
            tracing.start_outgoing_span("net", "child", node="alpha").end()
        tracing.start_incoming_span("net", "told to", PARENT, node="alpha").end()
        span = tracing.start_incoming_span("net", "told not to", unsampled, node="alpha")
        span.end()
    assert [it.name for it in recorder.recent()] == ["told to"]
    assert span.context is not None and span.context.trace_id == PARENT.trace_id


async def test_share_of_traces_is_recorded() -> None:
    async with Recorder("alpha", TracingConfig(sample=0.5)) as recorder:
        for _ in range(2_000):
            tracing.start_outgoing_span("net", "x", node="alpha").end()
    # Seventeen standard deviations: it fails once in the life of the universe.
    assert 600 < recorder.recorded < 1_400
    for settings in (
        {"sample": -0.1},
        {"sample": 1.1},
        {"keep_spans": 0},
        {"otlp": "localhost:4318"},
    ):
        with naming(settings), pytest.raises(ConfigError, match=f"{next(iter(settings))}="):
            TracingConfig(**settings)


async def test_each_node_of_a_process_records_its_own() -> None:
    async with Recorder("alpha") as alpha, Recorder("beta") as beta:
        with tracing.start_outgoing_span("net", "from", node="alpha", peer="beta") as span:
            tracing.start_incoming_span("net", "at", span.context, node="beta").end()
        assert tracing.start_outgoing_span("net", "x", node="gamma") is NOOP_SPAN
    (sent,), (came,) = alpha.recent(), beta.recent()
    assert (sent.trace_id, sent.span_id) == (came.trace_id, came.parent_id)


async def test_node_records_once_and_spans_may_outlive_it() -> None:
    async with Recorder("alpha"):
        with pytest.raises(UsageError, match="'alpha' are recorded already"):
            await Recorder("alpha").start()
    await Recorder("alpha").stop()
    async with Recorder("alpha") as recorder:
        span = tracing.start_outgoing_span("net", "x", node="alpha")
        assert isinstance(span, Span)
    with span:
        assert tracing.current_span() is None
    assert [it.name for it in recorder.recent()] == ["x"]


async def test_what_is_not_recorded_makes_nothing_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are told of the trace, so that they do not begin one; no span is made for it."""
    # Where the user's own code has it, that is told of every span.
    monkeypatch.delitem(sys.modules, "opentelemetry.trace", raising=False)
    async with Recorder("alpha", TracingConfig(sample=0.0)) as recorder:
        with tracing.start_outgoing_span("services", "call", node="alpha") as whole:
            assert tracing.current_span() is whole
            part = tracing.start_outgoing_span("net", "request", node="alpha")
            assert part.context == whole.context
            assert not isinstance(part, Span)
            with part, part.scope:
                assert tracing.current_span() is whole
                part.set_attribute("attempt", 1)
                whole.set_attribute("attempt", 1)
                part.end_with_error("no")
            whole.end_with_error("no")
            assert tracing.inject_context(None, part.context) is not None
        assert tracing.current_span() is None
        assert "Unrecorded" in repr(whole)
        told = msgspec.structs.replace(PARENT, flags=0)
        with tracing.start_incoming_span("net", "handle", told, node="alpha") as handled:
            assert handled.context == told
    assert recorder.recorded == 0
