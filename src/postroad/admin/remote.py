"""Operations of other members: an operator comes to one node, and works on any of them.

They travel as messages between nodes, so that other nodes need no way to their HTTP, and know who
asks by the connection it came over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec

from postroad.cluster import Member
from postroad.core.errors import MalformedPayloadError
from postroad.node import Node

from .errors import Forbidden, WrongToken
from .operations.office import Office
from .operations.table import OPERATIONS, Operation
from .problems import Problem, make_problem, problem_of, to_error

SUBJECT = "postroad.admin"

_STATUSES = frozenset(it for it in HTTPStatus if it >= HTTPStatus.BAD_REQUEST) - {
    HTTPStatus.UNAUTHORIZED
}

logger = logging.getLogger("postroad.admin")


class Ask(msgspec.Struct, array_like=True, frozen=True):
    """What one node asks of another."""

    operation: str
    params: dict[str, Any]


class Answer(msgspec.Struct, array_like=True, frozen=True):
    """What the other says."""

    result: msgspec.Raw
    problem: Problem | None = None


class RemoteOffice:
    """Asks other members, and answers them.

    Args:
        node: asks through its messages; what others may do here is `admin.remote` of its settings.
        office: where the wishes of others are fulfilled.
    """

    def __init__(self, node: Node, office: Office | None = None) -> None:
        self._node = node
        self._office = office
        self._settings = node.config.admin
        self._is_open = False

    def open(self, office: Office) -> None:
        """Answer others from now on."""
        self._office = office
        self._node.communication.serve(
            SUBJECT, self._answer, decoder=_decode_ask, encoder=_encode_answer
        )
        self._is_open = True

    def close(self) -> None:
        """Answer no more."""
        if self._is_open:
            self._is_open = False
            self._node.communication.unsubscribe(SUBJECT)

    async def ask(
        self,
        member: str,
        operation: str,
        params: Mapping[str, Any],
        *,
        timeout_s: float | None = None,
    ) -> Any:
        """Have another member do something, and return what the operation returns.

        Raises:
            MemberNotFoundError: nobody is called so.
            MessagingError: it cannot be reached.
            MalformedPayloadError: it answers with something else than the operation returns.
            PostroadError: what the operation raised there.
        """
        allowed_s = self._settings.request_timeout_s if timeout_s is None else timeout_s
        answer = await self._node.communication.request(
            member,
            SUBJECT,
            Ask(operation, dict(params)),
            encoder=_encode_ask,
            decoder=_decode_answer,
            timeout=allowed_s,
        )
        return read_result(answer, operation, member)

    async def _answer(self, ask: Ask, member: Member) -> Answer:
        try:
            result = await self._do(ask, member)
            return Answer(msgspec.Raw(_encode(result)))
        except Exception as error:
            return Answer(msgspec.Raw(_encode(None)), problem_of(error))

    async def _do(self, ask: Ask, member: Member) -> Any:
        operation = OPERATIONS.find(ask.operation)
        if (text := self._refusal(operation)) is not None:
            raise Forbidden(text)
        params = operation.read_params(ask.params)
        if not operation.is_read:
            logger.info("%s by operators of member %s", operation.name, member.name)
        assert self._office is not None
        limit = self._settings.request_timeout_s + (getattr(params, "timeout_s", None) or 0.0)
        async with asyncio.timeout(limit):
            return await operation(self._office, params)

    def _refusal(self, operation: Operation) -> str | None:
        """Why operators of other nodes may not do something here; None if they may."""
        config = self._node.config
        if config.admin_remote == "change" or (config.admin_remote == "read" and operation.is_read):
            return None
        who = f"node {self._node.name} lets operators of other nodes"
        if config.admin_remote == "read":
            return f"{who} only look: ask it directly, or set admin.remote=change there"
        if config.admin.remote is None:
            return (
                f"{who} do nothing, because everybody who reaches it can join its cluster: ask it "
                "directly with --url, close the cluster with node.secret_file or [tls], or set "
                "admin.remote=read there"
            )
        return f"{who} do nothing: ask it directly with --url, or set admin.remote there"


def _encode(value: Any) -> bytes:
    return msgspec.msgpack.encode(value, enc_hook=repr)


def _encode_ask(ask: Ask) -> bytes:
    return _encode(ask)


def _encode_answer(answer: Answer) -> bytes:
    return _encode(answer)


_decode_ask = msgspec.msgpack.Decoder(Ask).decode
_decode_answer = msgspec.msgpack.Decoder(Answer).decode


def read_result(answer: Answer, operation: str, member: str) -> Any:
    """What another member returned, as what the operation returns.

    A member is not believed: pages and commands show what comes of this, and take it for what the
    operation promises.

    Raises:
        MalformedPayloadError: it is something else.
        PostroadError: what the operation raised there.
    """
    if answer.problem is not None:
        raise to_error(_checked(answer.problem, member))
    try:
        result = msgspec.msgpack.decode(answer.result)
        return msgspec.convert(result, OPERATIONS.find(operation).result, strict=False)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedPayloadError(
            f"member {member} answers {operation} with something else than its result, or runs "
            f"another version of Postroad: {error}"
        ) from None


def _checked(problem: Problem, member: str) -> Problem:
    """A problem of another member, without what it could make an operator or a page do.

    Its status must not be that of a result, or ask for the operator's token again, and what people
    are told to try next is for this node to say.
    """
    status = problem.status if problem.status in _STATUSES else HTTPStatus.BAD_GATEWAY
    next = f"postroad errors {problem.code}" if problem.code else None
    if problem.id is not None and problem.id.isalnum():
        next = f"look for {problem.id} in the log of node {member}"
    return make_problem(
        status,
        problem.detail,
        code=0 if problem.code == WrongToken.code else problem.code,
        next=next,
        retryable=problem.retryable,
        id=problem.id,
        data=problem.data,
    )
