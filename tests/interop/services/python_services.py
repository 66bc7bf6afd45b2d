"""The services of our node; node_services.js has the same."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from postroad.services import errors
from postroad.services.context import Context
from postroad.services.errors import MoleculerError
from postroad.services.policies import RetryPolicy
from postroad.services.service import Service, action, event
from postroad.services.stream_sources import Objects
from tests.interop.services.error_samples import make_error

PIECE = 300_000

Heard = list[dict[str, Any]]


def content(seed: str, size: int) -> bytes:
    """Some bytes that are the same on both sides."""
    return hashlib.shake_256(seed.encode()).digest(size)


def source(said: Mapping[str, Any]) -> AsyncIterator[Any] | Objects[Any]:
    """A stream of bytes, or of objects; one that fails does so after everything else."""
    objects = said.get("objects")
    chunks = _pieces(said) if objects is None else objects
    stream = _stream(chunks, fails=bool(said.get("fails")))
    return stream if objects is None else Objects(stream)


def _pieces(said: Mapping[str, Any]) -> list[bytes]:
    data = content(said.get("seed", ""), said.get("size", 0))
    return [data[at : at + PIECE] for at in range(0, len(data), PIECE)]


async def _stream(chunks: Sequence[Any], *, fails: bool) -> AsyncIterator[Any]:
    for chunk in chunks:
        yield chunk
    if fails:
        raise MoleculerError("torn", 507, "TORN", {"at": 1})


async def digest(stream: Any) -> dict[str, Any]:
    """What came by a stream: its size and sum, or its objects."""
    if stream.has_objects:
        return {"objects": [value async for value in stream]}
    sum, size = hashlib.sha256(), 0
    async for chunk in stream:
        size += len(chunk)
        sum.update(chunk)
    return {"bytes": size, "sha256": sum.hexdigest()}


def context_of(ctx: Context) -> dict[str, Any]:
    return {
        "id": ctx.id,
        "level": ctx.level,
        "meta": {**ctx.meta},
        "headers": ctx.headers,
        "requestID": ctx.request_id,
        "parentID": ctx.parent_id,
        "caller": ctx.caller,
        "nodeID": ctx.node_id,
        "tracing": ctx.tracing,
        "timeout": round(ctx.timeout_s * 1000),
    }


class Actions(Service):
    """Whatever another node may call."""

    name = "py"
    settings = {"colour": "blue", "$secureSettings": ["key"], "key": "hidden"}  # noqa: RUF012
    metadata = {"made": "in python"}  # noqa: RUF012
    tries = 0

    @action
    def echo(self, ctx: Context) -> Any:
        return ctx.params

    @action
    def nothing(self, ctx: Context) -> None:
        return

    @action
    def context(self, ctx: Context) -> dict[str, Any]:
        seen = context_of(ctx)
        ctx.meta["seen"] = "by py"
        ctx.response_headers["reply"] = "from py"
        return seen

    @action(params={"count": "number|integer|positive", "name": "string|optional"})
    def checked(self, ctx: Context) -> Any:
        return ctx.params

    @action
    def typed(self, ctx: Context, count: int, name: str = "") -> Any:
        return {"count": count, "name": name}

    @action
    def fail(self, ctx: Context) -> None:
        name = ctx.params["name"]
        if ctx.params.get("is_bare"):
            raise getattr(errors, name)
        raise make_error(name) if hasattr(errors, name) else KeyError("lost")

    @action(name="tagAndFail")
    def tag_and_fail(self, ctx: Context) -> None:
        ctx.meta["tag"] = "set before the failure"
        raise errors.MoleculerClientError("no", 409, "CONFLICT", {"why": "so"})

    @action
    async def slow(self, ctx: Context) -> str:
        await asyncio.sleep(ctx.params["ms"] / 1000)
        return "slept"

    @action(timeout_s=0.1)
    async def hurried(self, ctx: Context) -> str:
        return await self.slow(ctx)

    @action
    async def relay(self, ctx: Context) -> dict[str, Any]:
        said = ctx.params
        ctx.meta["relay"] = "py"
        result = await ctx.call(said["action"], said.get("params"), **said.get("options", {}))
        return {"result": result, "meta": ctx.meta, "id": ctx.id, "requestID": ctx.request_id}

    @action
    def unsendable(self, ctx: Context) -> object:
        return object()

    @action
    async def upload(self, ctx: Context) -> dict[str, Any]:
        return {"params": ctx.params, "meta": ctx.meta, **await digest(ctx.stream)}

    @action
    def download(self, ctx: Context) -> Any:
        return source(ctx.params)

    @action
    def back(self, ctx: Context) -> Any:
        return ctx.stream

    @action(retry=RetryPolicy(is_enabled=True, retries=3, delay_s=0.01))
    def retried(self, ctx: Context) -> int:
        self.tries += 1
        if self.tries % 3:
            raise errors.MoleculerRetryableError("not yet")
        return self.tries

    @action(visibility="public")
    def open(self, ctx: Context) -> str:
        return "open"

    @action(visibility="protected")
    def guarded(self, ctx: Context) -> str:
        return "guarded"

    @action(visibility="private")
    def secret(self, ctx: Context) -> str:
        return "secret"

    @action
    async def tell(self, ctx: Context) -> list[str]:
        return [self.secret(ctx), await ctx.call("py.guarded")]

    @action
    async def announce(self, ctx: Context) -> None:
        await ctx.emit(ctx.params["event"], ctx.params["data"], headers={"trail": "py"})


class Listener(Service):
    """Remembers what its handlers get."""

    def __init__(self, heard: Heard) -> None:
        self._heard = heard

    def note(self, handler: str, ctx: Context) -> None:
        self._heard.append(
            {
                "handler": handler,
                "event": ctx.event,
                "data": ctx.params,
                "type": "broadcast" if ctx.is_broadcast else "emit",
                "groups": [*ctx.groups],
                "meta": ctx.meta,
                "headers": ctx.headers,
                "nodeID": ctx.node_id,
                "level": ctx.level,
                "caller": ctx.caller,
                "requestID": ctx.request_id,
            }
        )


class Events(Listener, Actions):
    """The handlers that the service of the other side has as well."""

    @event("py.exact")
    def on_exact(self, ctx: Context) -> None:
        self.note("exact", ctx)

    @event("py.*", group="py-stars")
    def on_star(self, ctx: Context) -> None:
        self.note("star", ctx)

    @event("py.**", group="py-all")
    def on_stars(self, ctx: Context) -> None:
        self.note("stars", ctx)

    @event("py.?.x", group="py-marks")
    def on_mark(self, ctx: Context) -> None:
        self.note("mark", ctx)

    @event("both.*")
    async def on_both(self, ctx: Context) -> None:
        self.note("both", ctx)

    @event("split.*", group="shared-group")
    async def on_split(self, ctx: Context) -> None:
        self.note("split", ctx)


class Second(Service):
    name = "py"
    version = 2

    @action
    def where(self, ctx: Context) -> str:
        return "v2"


class Beta(Service):
    name = "py"
    version = "beta"

    @action
    def where(self, ctx: Context) -> str:
        return "beta"


class Shared(Listener):
    """Both nodes have it."""

    name = "shared"

    @action
    def where(self, ctx: Context) -> str:
        return ctx.broker.node_id

    @action
    def work(self, ctx: Context) -> str:
        return ctx.broker.node_id

    @event("shared.done")
    def on_shared(self, ctx: Context) -> None:
        self.note("shared", ctx)


def services_of(heard: Heard) -> list[Service]:
    return [Events(heard), Second(), Beta(), Shared(heard)]


NAMES = ("py", "v2.py", "beta.py")
"""The services that only our node has."""
THEIR_NAMES = ("js", "v2.js", "beta.js")
