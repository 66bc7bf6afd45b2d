"""The API of a running node, for programs that wait: the `postroad` command and its shell.

It stands on the standard library alone, and imports no layer, so that commands begin at once.
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import SplitResult, quote, urlencode, urlsplit

import msgspec

from postroad.core.errors import (
    ConfigError,
    ConnectError,
    ConnectionClosedError,
    ReplyTimeoutError,
    TlsError,
)

from .cards import Card, find_cards, read_token
from .errors import AdminError
from .problems import CONTENT_TYPE, Problem, make_problem, to_error

_TIMEOUT_S = 35.0
# The server sends something every 15 seconds.
_SILENCE_S_MAX = 45.0
_METHOD_NOT_ALLOWED = 405
_ERRORS = 400
_BAD_GATEWAY = 502
_PORTS = {"http": 80, "https": 443}


class Tls(NamedTuple):
    """How a server is trusted, and what it is shown."""

    trust: str | None = None
    """Certificates of those who sign servers; by default those the system trusts."""
    certificate: str | None = None
    """Shown to the server."""
    key: str | None = None
    pinned: str | None = None
    """The certificate of the server itself, if it is known: whatever its name."""

    def context(self) -> ssl.SSLContext:
        """As the standard library wants it; raises ConfigError if a file cannot be used."""
        try:
            context = ssl.create_default_context(cafile=self.trust or self.pinned)
            if self.pinned is not None and self.trust is None:
                context.check_hostname = False
                context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(it for it in self if it is not None)
            raise ConfigError(f"{files} cannot be used for HTTPS: {error}") from None
        return context


class Client:
    """Calls operations of a node over HTTP.

        with Client("http://127.0.0.1:8222", token) as client:
            print(client.call("queue.ls"))

    Args:
        url: where the node serves its API.
        token: of the node, unless a certificate is shown.
        timeout_s: for each answer to begin.
        tls: for `https`.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout_s: float = _TIMEOUT_S,
        tls: Tls | None = None,
    ) -> None:
        parts, self._host, self._port = _read_address(url)
        if token is not None and not (token.isascii() and token.isprintable()):
            raise ConfigError("a token has printable ASCII characters only")
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/")
        self._prefix = parts.path.rstrip("/")
        self._context = (tls or Tls()).context() if parts.scheme == "https" else None
        self._token = token
        self._timeout_s = timeout_s
        # Operations that only look, as far as the server has said so.
        self._reads: set[str] = set()
        self._watching: set[http.client.HTTPConnection] = set()

    @classmethod
    def of(cls, card: Card, data: Path | str, *, token: str | None = None) -> Self:
        """The client of a node that runs on this machine."""
        tls = None if card.certificate is None else Tls(pinned=card.certificate)
        return cls(card.url, token or read_token(Path(data), card.name), tls=tls)

    def call(
        self,
        operation: str,
        params: Mapping[str, Any] | None = None,
        *,
        node: str | None = None,
        is_read: bool | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        """Have something done; returns what JSON holds.

        Args:
            operation: noun and verb, `queue.ls`.
            params: those that are None are left out.
            node: the member that shall do it, if it is another.
            is_read: whether it changes nothing, if that is known; else the server is asked first.

        Raises:
            PostroadError: what the operation raised; a note of it tells what to try next.
            MessagingError: nobody answers.
        """
        said = {name: value for name, value in (params or {}).items() if value is not None}
        path = "/api/v1/" + "/".join(quote(it, safe="") for it in operation.split(".", 1))
        allowed_s = timeout_s or self._timeout_s + _extra_time(said)
        if is_read or operation in self._reads:
            query = _query(said, node)
            return self._answer("GET", f"{path}{query}", None, allowed_s)
        try:
            return self._answer(
                "POST", f"{path}{_query({}, node)}", msgspec.json.encode(said), allowed_s
            )
        except _MethodRefused:
            self._reads.add(operation)
            return self._answer("GET", f"{path}{_query(said, node)}", None, allowed_s)

    def fetch(self, path: str) -> str:
        """A text of the server, such as `/metrics` or `/api/v1/openapi.json`."""
        return self._exchange("GET", path, None, self._timeout_s).decode()

    def watch(
        self,
        wishes: Iterable[tuple[str, Mapping[str, Any]]],
        *,
        node: str | None = None,
    ) -> Generator[tuple[str, Any]]:
        """Results of read operations, each time they change; the first ones come at once.

        Raises:
            PostroadError: an operation does not work.
            ConnectionClosedError: the server has stopped, or fallen silent.
        """
        pairs: list[tuple[str, str]] = [] if node is None else [("node", node)]
        for operation, params in wishes:
            pairs.append(("operation", operation))
            pairs += [(f"{operation}.{name}", value) for name, value in _pairs(params)]
        connection = self._connect(_SILENCE_S_MAX)
        self._watching.add(connection)
        try:
            response = self._request(connection, "GET", f"/api/v1/watch?{urlencode(pairs)}", None)
            if response.status >= _ERRORS:
                raise _error_in(response, self._read(response))
            for event, data in _events(self._lines(response)):
                if event == "problem":
                    raise _problem_error(data)
                yield event, data
            raise ConnectionClosedError(f"{self.url} has stopped")
        finally:
            self._watching.discard(connection)
            connection.close()

    def close(self) -> None:
        """End what is being watched."""
        for connection in [*self._watching]:
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        self.close()

    def _answer(self, method: str, path: str, body: bytes | None, timeout_s: float) -> Any:
        return _parse(self._exchange(method, path, body, timeout_s))

    def _exchange(self, method: str, path: str, body: bytes | None, timeout_s: float) -> bytes:
        connection = self._connect(timeout_s)
        try:
            response = self._request(connection, method, path, body)
            content = self._read(response)
        finally:
            connection.close()
        if response.status >= _ERRORS:
            raise _error_in(response, content)
        return content

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        if self._context is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=timeout_s, context=self._context
        )

    def _request(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None
    ) -> http.client.HTTPResponse:
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            connection.connect()
        except ssl.SSLError as error:
            raise TlsError(f"{self.url} cannot be trusted, or is no HTTPS: {error}") from None
        except OSError as error:
            raise ConnectError(
                f"nobody answers at {self.url}: {error.strerror or error};"
                " start the node with `postroad node start`"
            ) from None
        try:
            connection.request(method, f"{self._prefix}{path}", body, headers)
            return connection.getresponse()
        except TimeoutError:
            raise ReplyTimeoutError(
                f"{self.url} did not answer in {connection.timeout:g} s"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise self._broken(error) from None

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        try:
            return response.read()
        except TimeoutError:
            raise ReplyTimeoutError(f"{self.url} stopped in the middle of an answer") from None
        except (OSError, http.client.HTTPException) as error:
            raise self._broken(error) from None

    def _lines(self, response: http.client.HTTPResponse) -> Iterator[str]:
        try:
            while line := response.readline():
                yield line.decode().rstrip("\r\n")
        except (OSError, ValueError, http.client.HTTPException, AttributeError) as error:
            raise self._broken(error) from None

    def _broken(self, error: Exception) -> ConnectionClosedError:
        return ConnectionClosedError(f"the connection to {self.url} broke: {error!r}")


def find_nodes(data: Path | str) -> list[Card]:
    """Nodes that run on this machine, as far as they keep their files in this directory."""
    return find_cards(Path(data))


def _read_address(url: str) -> tuple[SplitResult, str, int]:
    """An address, its host and its port; raises ConfigError if it is none."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port or _PORTS[parts.scheme]
    except (ValueError, KeyError):
        raise _no_address(url) from None
    if not parts.hostname:
        raise _no_address(url)
    return parts, parts.hostname, port


def _no_address(url: str) -> ConfigError:
    return ConfigError(f"{url!r} is no address of an API: write http://127.0.0.1:8222")


class _MethodRefused(AdminError):
    """The operation is not done by this method."""


def _error_in(response: http.client.HTTPResponse, content: bytes) -> Exception:
    if response.status == _METHOD_NOT_ALLOWED and "GET" in response.headers.get("allow", ""):
        return _MethodRefused("this only looks")
    if response.headers.get("content-type", "").startswith(CONTENT_TYPE):
        try:
            return to_error(msgspec.json.decode(content, type=Problem))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass  # It is told as any other text.
    text = content[:200].decode("utf-8", "replace").strip()
    return to_error(make_problem(response.status, text or response.reason))


def _problem_error(data: Any) -> Exception:
    """The error of a problem, or of something that was said to be one."""
    try:
        return to_error(msgspec.convert(data, Problem, strict=False))
    except (msgspec.ValidationError, RecursionError) as error:
        return to_error(make_problem(_BAD_GATEWAY, f"this server tells of no problem: {error}"))


def _parse(content: bytes | str) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        # Also what is no UTF-8.
        raise to_error(make_problem(_BAD_GATEWAY, "this server does not answer in JSON")) from None


def _extra_time(said: Mapping[str, Any]) -> float:
    """The time that the operation itself is given, if it is."""
    given = said.get("timeout_s")
    return float(given) if isinstance(given, int | float) else 0.0


def _query(said: Mapping[str, Any], node: str | None) -> str:
    pairs = [*_pairs(said), *([] if node is None else [("node", node)])]
    return f"?{urlencode(pairs)}" if pairs else ""


def _pairs(said: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in said.items():
        for it in value if isinstance(value, list | tuple) else [value]:
            if it is not None:
                yield name, it if isinstance(it, str) else json.dumps(it)


def _events(lines: Iterable[str]) -> Iterator[tuple[str, Any]]:
    event, data = "message", ""
    for line in lines:
        if not line and data:
            yield event, _parse(data)
            event, data = "message", ""
        elif line.startswith("event:"):
            event = line[6:].strip()
        elif line.startswith("data:"):
            data += line[5:].strip()
