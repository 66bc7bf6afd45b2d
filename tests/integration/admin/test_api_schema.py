"""Whatever the OpenAPI document allows, and much that it does not, against a real node."""

import asyncio
import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case
from schemathesis.checks import CHECKS

from postroad.admin.http.openapi import make_document
from tests.support.admin.nodes import TOKEN, served

# The one never ends, the other ends the node.
LEFT_OUT = ["/api/v1/watch", "/api/v1/node/stop"]

schema = schemathesis.openapi.from_dict(make_document()).exclude(path=LEFT_OUT)
checks: list[Any] = CHECKS.get_by_names(
    [
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_headers_conformance",
        "response_schema_conformance",
        "negative_data_rejection",
        "unsupported_method",
        "ignored_auth",
    ]
)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A node in a loop of its own, since this client waits."""
    told: queue.Queue[str] = queue.Queue()
    ending: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def run() -> None:
        settings = {"request_timeout_s": 10.0}
        async with served(tmp_path_factory.mktemp("alpha"), admin=settings) as node:
            await node.node.queues.declare("orders")
            end = asyncio.Event()
            ending.append((asyncio.get_running_loop(), end))
            told.put(node.admin.url)
            await end.wait()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    yield told.get(timeout=120)
    [(loop, end)] = ending
    loop.call_soon_threadsafe(end.set)
    thread.join(timeout=120)
    assert not thread.is_alive()


@schema.parametrize()
@settings(
    max_examples=6,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
def test_operations(case: Case[Any], url: str) -> None:
    case.call_and_validate(
        base_url=url, headers={"Authorization": f"Bearer {TOKEN}"}, checks=checks
    )
