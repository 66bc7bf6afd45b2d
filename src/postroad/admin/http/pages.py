"""The dashboard: plain files of the package, the same for everybody."""

from __future__ import annotations

import asyncio
import hashlib
import mimetypes
from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from postroad.admin.problems import make_problem

from .answers import refusal
from .calling import refuse_method

_METHODS = ("GET", "HEAD")
_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


class PagesEndpoint:
    """Serves the files of a directory, and `index.html` for the root."""

    def __init__(self, directory: Traversable | None = None) -> None:
        self._directory = directory or files("postroad").joinpath("dashboard", "static")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        request = Request(scope, receive)
        if request.method in _METHODS:
            response = await self._respond(request)
        else:
            response = refuse_method(request.method, _METHODS)
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        path = request.path_params["path"] or "index.html"
        content = await asyncio.to_thread(self._read, path)
        if content is None:
            return refusal(
                make_problem(
                    404, f"there is nothing at /{path[:100]}", next="GET /api/v1/openapi.json"
                )
            )
        tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        headers = {"cache-control": "no-cache", "etag": tag}
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        ending = path.rpartition(".")[2]
        kind = _TYPES.get(ending) or mimetypes.guess_type(path)[0] or "application/octet-stream"
        return Response(content, headers=headers, media_type=kind)

    def _read(self, path: str) -> bytes | None:
        parts = path.split("/")
        if any(part in ("", ".", "..") or "\\" in part or "\0" in part for part in parts):
            return None
        found = self._directory.joinpath(*parts)
        try:
            return found.read_bytes() if found.is_file() else None
        except OSError:
            return None
