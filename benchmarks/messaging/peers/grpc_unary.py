"""grpc.aio: a unary echo with generic handlers, so that no time goes into protobuf."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.messaging.processes import run_client, run_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from benchmarks.messaging.job import Job
    from benchmarks.messaging.workloads import Call


@asynccontextmanager
async def listen(job: Job) -> AsyncIterator[str]:
    import grpc

    async def echo(payload: bytes, context: Any) -> bytes:
        return payload

    method = grpc.unary_unary_rpc_method_handler(echo)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("benchmark", {job.subject: method}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


@asynccontextmanager
async def connect(job: Job, address: str) -> AsyncIterator[Call]:
    import grpc

    async with grpc.aio.insecure_channel(address) as channel:
        yield channel.unary_unary(f"/benchmark/{job.subject}")


serve = partial(run_server, listen)
client = partial(run_client, connect)
