"""Contexts as W3C writes them, and what is current where."""

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.core import tracing
from postroad.core.errors import UsageError
from postroad.core.tracing import NOOP_SPAN, Span, SpanContext, SpanKind, SpanLike

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"

hex_digits = st.text("0123456789abcdef", min_size=1)
trace_ids = st.integers(1, (1 << 128) - 1).map(lambda number: f"{number:032x}")
span_ids = st.integers(1, (1 << 64) - 1).map(lambda number: f"{number:016x}")
keys = st.from_regex(r"\A[a-z][a-z0-9_\-*/]{0,10}\Z")
values = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters=",="))
states = st.dictionaries(keys, values.filter(bool), max_size=8).map(
    lambda them: ",".join(f"{key}={value}" for key, value in them.items())
)
contexts = st.builds(SpanContext, trace_ids, span_ids, st.sampled_from([0, 1]), states)


class Ledger:
    tracks_context = True

    def __init__(self) -> None:
        self.ended: list[Span] = []
        self.begun = 0

    def start_span(
        self,
        name: str,
        kind: SpanKind,
        layer: str,
        node: str,
        peer: str,
        parent: SpanContext | None,
        is_incoming: bool,
        links: Sequence[SpanContext],
    ) -> SpanLike:
        self.begun += 1
        trace_id = TRACE if parent is None else parent.trace_id
        context = SpanContext(trace_id, f"{self.begun:016x}")
        return Span(self, context, parent, name=name, kind=kind, layer=layer, links=links)

    def on_end(self, span: Span) -> None:
        span.end_ns = 1
        self.ended.append(span)

    def attach(self, span: SpanLike) -> object:
        return None

    def detach(self, entered: object) -> None:
        return None


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    ledger = Ledger()
    tracing.set_tracer(ledger)
    try:
        yield ledger
    finally:
        tracing.set_tracer(None)


@given(contexts)
def test_span_context_round_trip_is_equal(context: SpanContext) -> None:
    if len(context.tracestate) <= tracing.TRACESTATE_CHARS_MAX:
        assert tracing.parse_traceparent(context.traceparent, context.tracestate) == context
        assert tracing.extract_context(tracing.inject_context({"other": "x"}, context)) == context


@given(st.text())
def test_invalid_context_never_raises(text: str) -> None:
    context = tracing.parse_traceparent(text, text)
    assert context is None or context.traceparent[:2] == "00"
    assert (
        tracing.extract_context({tracing.TRACEPARENT: PARENT, tracing.TRACESTATE: text}) is not None
    )


def test_parse_traceparent_invalid_returns_none() -> None:
    for text in [
        "",
        "00",
        PARENT.upper(),
        PARENT + "-00",
        PARENT + "\n",
        " " + PARENT,
        f"ff-{TRACE}-{SPAN}-01",
        f"0-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}g-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-0x",
        f"00_{TRACE}_{SPAN}_01",
        f"cc-{TRACE}-{SPAN}-01.what",
    ]:
        assert tracing.parse_traceparent(text) is None, text

    context = tracing.parse_traceparent(f"cc-{TRACE}-{SPAN}-01-what-the-future-brings")
    assert context == SpanContext(TRACE, SPAN, 1)

    context = tracing.parse_traceparent(f"00-{TRACE}-{SPAN}-ff")
    assert context is not None and context.traceparent == PARENT
    unsampled = tracing.parse_traceparent(f"00-{TRACE}-{SPAN}-fe")
    assert unsampled is not None and not unsampled.is_sampled


def test_a_tracestate_is_passed_on_as_it_came_or_dropped_alone(subtests: pytest.Subtests) -> None:
    for state in [
        "congo=t61rcWkgMzE",
        "a=1,b=2",
        "a=1 , b=2",
        "tenant@vendor=x",
        "0a@v=1",
        "a=1,,b=2",
        "a= x",
        "a=1;b",
    ]:
        with subtests.test(state=state):
            context = tracing.parse_traceparent(PARENT, state)
            assert context is not None and context.tracestate == state

    for state in [
        "a",
        "A=1",
        "a=1,a=2",
        "a=b=c",
        "a=\x01",
        "=1",
        "a=",
        "a=ü",
        "x" * 513,
        ",".join(f"k{number}=1" for number in range(33)),
    ]:
        assert tracing.parse_traceparent(PARENT, state) == SpanContext(TRACE, SPAN), state


def test_headers_of_others_are_read_copied_and_stripped() -> None:
    assert tracing.extract_context(None) is None
    assert tracing.extract_context({}) is None
    assert tracing.extract_context({"traceparent": 5}) is None
    assert tracing.extract_context({"traceparent": PARENT, "tracestate": b"a=1"}) == SpanContext(
        TRACE, SPAN
    )

    headers = {"a": "1", "tracestate": "old=1"}
    injected = tracing.inject_context(headers, SpanContext(TRACE, SPAN))
    assert injected == {"a": "1", "traceparent": PARENT}
    assert headers == {"a": "1", "tracestate": "old=1"}
    assert tracing.inject_context(headers, None) is headers
    assert tracing.inject_context(None, None) is None

    injected = tracing.inject_context({"a": "1"}, SpanContext(TRACE, SPAN, 1, "b=2"))
    assert tracing.remove_context(injected) == {"a": "1"}
    assert tracing.remove_context(tracing.inject_context(None, SpanContext(TRACE, SPAN))) is None
    assert tracing.remove_context(None) is None


def test_tracing_without_a_tracer_does_nothing() -> None:
    assert tracing.start_outgoing_span("net", "x", node="alpha") is NOOP_SPAN
    assert (
        tracing.start_incoming_span("net", "x", SpanContext(TRACE, SPAN), node="alpha") is NOOP_SPAN
    )
    with NOOP_SPAN as span, span.scope:
        span.set_attribute("a", 1)
        span.end()
        span.end_with_error("no")
        assert span.context is None
        assert tracing.current_span() is None
        assert tracing.current_span_context() is None


def test_span_started_within_a_span_is_its_child(ledger: Ledger) -> None:
    with tracing.start_outgoing_span("net", "outer", node="alpha") as outer:
        with tracing.start_outgoing_span("net", "inner", node="alpha") as inner:
            assert tracing.current_span() is inner
        assert tracing.current_span() is outer
    assert tracing.current_span() is None
    assert [span.name for span in ledger.ended] == ["inner", "outer"]
    assert [span.parent for span in ledger.ended] == [outer.context, None]


def test_incoming_span_has_only_the_received_parent(ledger: Ledger) -> None:
    context = SpanContext(TRACE, SPAN)
    with tracing.start_outgoing_span("net", "outer", node="alpha"):
        tracing.start_incoming_span("net", "told", context, node="alpha").end()
        tracing.start_incoming_span("net", "silent", None, node="alpha").end()
    assert [span.parent for span in ledger.ended[:2]] == [context, None]


def test_headers_of_the_user_count_outside_of_all_spans(ledger: Ledger) -> None:
    headers = {"traceparent": PARENT}
    tracing.start_outgoing_span("cells", "first", node="alpha", headers=headers).end()
    with tracing.start_outgoing_span("net", "outer", node="alpha") as outer:
        tracing.start_outgoing_span("cells", "second", node="alpha", headers=headers).end()
    assert [span.parent for span in ledger.ended[:2]] == [SpanContext(TRACE, SPAN), outer.context]


def test_an_error_is_noted_with_its_code_once(ledger: Ledger) -> None:
    with pytest.raises(UsageError), tracing.start_outgoing_span("net", "x", node="alpha"):
        raise UsageError("it broke")
    (span,) = ledger.ended
    assert (span.error, span.code) == ("UsageError: it broke", UsageError.code)

    tracing.start_outgoing_span("net", "x", node="alpha").end(Unprintable())
    assert [(span.error, span.code) for span in ledger.ended[1:]] == [("Unprintable", 0)]

    once = tracing.start_outgoing_span("net", "x", node="alpha")
    once.end()
    once.end(ValueError("too late"))
    once.end_with_error("too late")
    assert [span.error for span in ledger.ended[2:]] == [None]


class Unprintable(Exception):
    code = "none"

    def __str__(self) -> str:
        raise ValueError("not even this")


def test_a_span_goes_on_after_a_block_inside_of_it(ledger: Ledger) -> None:
    span = tracing.start_outgoing_span("net", "x", node="alpha")
    with span.scope:
        assert tracing.current_span() is span
    assert tracing.current_span() is None
    assert ledger.ended == []
    span.end_with_error("later", 5)
    assert [(span.error, span.code) for span in ledger.ended] == [("later", 5)]


def test_scope_none_suppresses_spans(ledger: Ledger) -> None:
    with tracing.start_outgoing_span("net", "outer", node="alpha") as outer, tracing.scope(None):
        assert tracing.start_outgoing_span("net", "x", node="alpha") is NOOP_SPAN
        assert tracing.current_span() is None
    assert isinstance(outer, Span)
    with tracing.scope(outer):
        assert tracing.current_span() is outer
    assert [span.name for span in ledger.ended] == ["outer"]


def test_work_that_outlives_a_span_or_its_tracer_is_outside_of_it(ledger: Ledger) -> None:
    with tracing.start_outgoing_span("net", "outer", node="alpha"):
        assert tracing.detached_context().run(tracing.current_span) is None
        assert tracing.current_span() is not None
        tracing.set_tracer(None)
        assert tracing.current_span_context() is None
