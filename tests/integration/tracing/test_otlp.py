"""Spans for collectors of OpenTelemetry, and spans of the user's own code."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from opentelemetry import trace as otel
from opentelemetry.sdk.trace import TracerProvider

from postroad.core import tracing
from postroad.core.errors import RemoteHandlerError, UsageError
from postroad.net import MessagingService, RawMessage
from postroad.node.tracing import Recorder, TracingConfig
from tests.support.deadlines import eventually

from .collector import attributes_of, running_collector

CLIENT, SERVER, PRODUCER, CONSUMER = 3, 2, 4, 5
OK, ERROR = 1, 2


async def test_a_collector_gets_the_spans_of_all_nodes() -> None:
    with running_collector() as collector:
        settings = TracingConfig(otlp=collector.url, service_name="shop")
        async with (
            Recorder("alpha", settings) as recorder,
            Recorder("beta", TracingConfig(otlp=collector.url + "/v1/traces")),
            MessagingService("test", "alpha") as alpha,
            MessagingService("test", "beta") as beta,
        ):
            beta.serve("price", lambda message: b"7")
            await alpha.request(beta.address, "price")
            assert await recorder.flush()
    assert collector.paths == {"/v1/traces"}
    asked, served = collector.named("request price"), collector.named("handle price")
    assert asked.trace_id == served.trace_id and served.parent_span_id == asked.span_id
    assert (asked.kind, served.kind) == (CLIENT, SERVER)
    assert asked.parent_span_id == b"" and asked.status.code == served.status.code == OK
    assert 0 < asked.start_time_unix_nano < served.start_time_unix_nano
    assert lasted_ns(served) < lasted_ns(asked) and asked.end_time_unix_nano <= time.time_ns()
    assert attributes_of(served)["postroad.layer"] == "net"
    assert attributes_of(served)["postroad.node"] == "beta"
    assert attributes_of(served)["postroad.peer"] == "alpha"
    names = {(it["service.name"], it["service.instance.id"]) for it in collector.resources}
    assert names == {("shop", "alpha"), ("beta", "beta")}
    (known,) = recorder.recent()
    assert asked.trace_id.hex() == known.trace_id and asked.span_id.hex() == known.span_id


def lasted_ns(span: Any) -> int:
    """How long a span took, by a clock that is not set; when it began is told by another."""
    return int(span.end_time_unix_nano - span.start_time_unix_nano)


async def test_what_a_span_has_besides() -> None:
    with running_collector() as collector:
        async with Recorder("alpha", TracingConfig(otlp=collector.url)):
            link = tracing.SpanContext("1" * 32, "2" * 16)
            span = tracing.start_incoming_span("net", "x", link, node="alpha", links=[link])
            span.set_attribute("count", 3)
            span.end(UsageError("it broke"))
            unsampled = tracing.SpanContext("1" * 32, "2" * 16, 0)
            tracing.start_incoming_span("net", "nobody wants it", unsampled, node="alpha").end()
    (sent,) = collector.spans
    assert (sent.status.code, sent.status.message) == (ERROR, "UsageError: it broke")
    assert attributes_of(sent)["count"] == 3
    assert attributes_of(sent)["postroad.error.code"] == UsageError.code
    assert [it.span_id.hex() for it in sent.links] == [link.span_id]


async def test_what_waits_is_sent_at_the_end() -> None:
    with running_collector() as collector:
        async with Recorder("alpha", TracingConfig(otlp=collector.url)):
            for number in range(2_000):
                tracing.start_outgoing_span("net", f"{number}", node="alpha").end()
    assert len(collector.spans) == 2_000


async def test_a_collector_that_is_gone_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL", "opentelemetry")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    recorder = Recorder("alpha", TracingConfig(otlp=url))
    await recorder.start()
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.001)
            ticks += 1

    ticking = asyncio.create_task(tick())
    # More than may wait.
    for _ in range(10_000):
        tracing.start_outgoing_span("net", "x", node="alpha").end()
    await recorder.stop(grace=0.2)
    ticking.cancel()
    await eventually(lambda: not exporting(), "what could not be sent is given up")
    assert recorder.recorded == 10_000
    assert ticks > 10, "the loop went on while somebody waited for the collector"
    assert tracing.tracer is None


def exporting() -> list[str]:
    return [it.name for it in threading.enumerate() if it.name.startswith("OtelBatch")]


async def test_spans_of_the_users_own_code_are_parents_and_children() -> None:
    own = TracerProvider().get_tracer("user")
    with running_collector() as collector:
        async with (
            Recorder("alpha", TracingConfig(otlp=collector.url)) as recorder,
            MessagingService("test", "alpha") as alpha,
        ):
            seen: list[otel.SpanContext] = []

            async def price(message: RawMessage) -> bytes:
                await asyncio.sleep(0)
                with own.start_as_current_span("within") as span:
                    seen.append(span.get_span_context())
                    assert span.parent is not None  # type: ignore[attr-defined]
                    seen.append(span.parent)  # type: ignore[attr-defined]
                    await alpha.send(alpha.address, "asked")
                return b"7"

            alpha.serve("price", price)
            alpha.subscribe("asked", lambda message: None)
            with own.start_as_current_span("user") as user:
                await alpha.request(alpha.address, "price")
            assert not otel.get_current_span().get_span_context().is_valid
            spans = {it.name: it for it in recorder.recent()}
    context = user.get_span_context()
    assert spans["request price"].parent_id == f"{context.span_id:016x}"
    assert {it.trace_id for it in spans.values()} == {f"{context.trace_id:032x}"}
    inner, parent = seen
    assert f"{parent.span_id:016x}" == spans["handle price"].span_id
    assert spans["send asked"].parent_id == f"{inner.span_id:016x}"


async def test_a_failure_in_the_users_own_span() -> None:
    own = TracerProvider().get_tracer("user")
    async with Recorder("alpha") as recorder, MessagingService("test", "alpha") as alpha:

        def fail(message: RawMessage) -> bytes:
            raise ValueError("no tea")

        alpha.serve("price", fail)
        with own.start_as_current_span("user") as user, pytest.raises(RemoteHandlerError):
            await alpha.request(alpha.address, "price")
    span_id = f"{user.get_span_context().span_id:016x}"
    assert span_id in [it.parent_id for it in recorder.recent()]


def run_python(*lines: str) -> str:
    command = [sys.executable, "-c", "\n".join(("import asyncio, sys", *lines))]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_nobody_loads_opentelemetry_for_nothing() -> None:
    output = run_python(
        "from postroad.node.tracing import Recorder",
        "async def main():",
        "    async with Recorder('alpha'):",
        "        pass",
        "asyncio.run(main())",
        "print([it for it in sys.modules if it.startswith('opentelemetry')])",
    )
    assert output.strip() == "[]"


def test_the_extra_is_named_if_it_is_missing() -> None:
    output = run_python(
        "sys.modules['opentelemetry'] = None",
        "from postroad.core import tracing",
        "from postroad.core.errors import MissingExtraError",
        "from postroad.node.tracing import Recorder, TracingConfig",
        "try:",
        "    asyncio.run(Recorder('alpha', TracingConfig(otlp='http://localhost')).start())",
        "except MissingExtraError as error:",
        "    print(error, tracing.tracer)",
    )
    assert "or 'FILE.whl[telemetry]' None" in output
