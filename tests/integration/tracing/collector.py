"""A collector of OpenTelemetry: a server that reads what exporters send, and keeps it."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """What was sent, as protobuf has it."""

    def __init__(self) -> None:
        self.paths: set[str] = set()
        self.resources: list[dict[str, Any]] = []
        self.spans: list[Any] = []
        self.url = ""

    def take(self, path: str, body: bytes) -> None:
        self.paths.add(path)
        for part in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resources.append(attributes_of(part.resource))
            for scope in part.scope_spans:
                self.spans += scope.spans

    def named(self, name: str) -> Any:
        (found,) = [span for span in self.spans if span.name == name]
        return found


def attributes_of(message: Any) -> dict[str, Any]:
    """The attributes of a span or a resource."""
    return {it.key: getattr(it.value, it.value.WhichOneof("value")) for it in message.attributes}


@contextmanager
def running_collector() -> Iterator[Collector]:
    """A collector that listens on loopback."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            collector.take(self.path, body)
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
