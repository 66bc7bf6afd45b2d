"""Operations over HTTP: `GET` or `POST /api/v1/NOUN/VERB`."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from postroad.admin.operations.office import Office
from postroad.admin.problems import make_problem
from postroad.admin.remote import RemoteOffice
from postroad.node.settings import AdminSettings

from .answers import answer, failure, refusal
from .guard import Caller, Guard
from .wishes import Wish, find_operation, read_body, read_query, wish_from_body, wish_from_query

logger = logging.getLogger("postroad.admin")


class Desk:
    """Fulfils wishes: here, or by asking another member."""

    def __init__(self, office: Office, remote: RemoteOffice, settings: AdminSettings) -> None:
        self.office = office
        self.remote = remote
        self.settings = settings

    async def fulfil(self, wish: Wish) -> Any:
        """Do what is wished, in the time there is for it."""
        allowed_s = self.settings.request_timeout_s + wish.timeout_s
        name = wish.operation.name
        if wish.node is not None and wish.node != self.office.name:
            return await self.remote.ask(wish.node, name, wish.said, timeout_s=allowed_s)
        limit = asyncio.timeout(allowed_s)
        try:
            async with limit:
                return await wish.operation(self.office, wish.params)
        except TimeoutError:
            if limit.expired():
                raise TimeoutError(f"{name} took longer than {allowed_s:g} s") from None
            raise


class OperationsEndpoint:
    """Serves every operation."""

    def __init__(self, desk: Desk, guard: Guard) -> None:
        self._desk = desk
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        request = Request(scope, receive)
        try:
            caller = self._guard.identify(request)
        except Exception as error:
            response = failure(error)
        else:
            response = await self._respond(request, caller)
            response.headers["postroad-role"] = caller.role.value
            response.headers["postroad-node"] = self._desk.office.name
        await response(scope, receive, send)

    async def _respond(self, request: Request, caller: Caller) -> Response:
        try:
            names = request.path_params
            operation = find_operation(f"{names['noun']}.{names['verb']}")
            methods = ("GET", "HEAD") if operation.is_read else ("POST",)
            if request.method not in methods:
                return refuse_method(request.method, methods)
            pairs = read_query(request)
            if operation.is_read:
                wish = wish_from_query(operation, pairs)
            else:
                self._guard.check_change(caller, request, operation.name)
                body = await read_body(request, self._desk.settings.body_bytes_max)
                wish = wish_from_body(operation, body, pairs)
                where = wish.node or self._desk.office.name
                told = " ".join([operation.name, *wish.subjects])
                logger.info("%s at %s, by %s", told, where, caller.name)
            return answer(await self._desk.fulfil(wish))
        except Exception as error:
            return failure(error)


def refuse_method(method: str, allowed: tuple[str, ...]) -> Response:
    """Tell what can be done instead; OPTIONS asks for nothing else."""
    headers = {"allow": ", ".join((*allowed, "OPTIONS"))}
    if method == "OPTIONS":
        return Response(status_code=204, headers=headers)
    problem = make_problem(405, f"{method} is not possible here", next=f"use {allowed[0]}")
    return refusal(problem, headers)
