"""Who may do what: tokens, certificates, names of the server, and pages of others."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio

from postroad import admin
from postroad.admin import NodeCertificate
from postroad.admin.client import Client, Tls, find_nodes
from postroad.admin.errors import Forbidden
from postroad.core.errors import ConfigError, ConnectionClosedError, TlsError
from tests.support.admin.nodes import READ_TOKEN, TOKEN, Served, connect, hang_up, served

pytestmark = pytest.mark.asyncio(loop_scope="module")

LOOK = ("GET", "/api/v1/queue/ls")
CHANGE = ("POST", "/api/v1/queue/pause")
ALL, READ, WRONG, NONE = TOKEN, READ_TOKEN, "x" * 20, None


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["127.0.0.1:0", "0.0.0.0:0"])
async def node(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> AsyncIterator[Served]:
    directory = tmp_path_factory.mktemp("alpha")
    async with served(directory, admin={"bind": request.param}) as found:
        await found.node.queues.declare("orders")
        yield found


@pytest.mark.parametrize(
    ("wish", "statuses"),
    [
        # With the token, with the read token, with a wrong one, and with none.
        (LOOK, (200, 200, 401, 401)),
        (CHANGE, (200, 403, 401, 401)),
        (("GET", "/api/v1/watch"), (400, 400, 401, 401)),
        (("GET", "/api/v1/no/such"), (404, 404, 401, 401)),
        (("GET", "/livez"), (200, 200, 200, 200)),
    ],
)
async def test_tokens(
    node: Served, wish: tuple[str, str], statuses: tuple[int, int, int, int]
) -> None:
    method, path = wish
    data = {"queue": "orders"} if method == "POST" else None
    found = [
        await node.ask(path, method=method, token=token, data=data)
        for token in (ALL, READ, WRONG, NONE)
    ]
    assert tuple(it.status for it in found) == statuses
    for reply in found:
        assert ("www-authenticate" in reply.headers) == (reply.status == 401)
        assert ("postroad-role" in reply.headers) <= (reply.status != 401)


async def test_probes_need_a_token_where_others_can_connect(node: Served) -> None:
    is_local = node.node.config.admin.bind.startswith("127.")
    for path in ("/readyz", "/metrics", "/api/v1/openapi.json"):
        assert (await node.ask(path, token=None)).status == (200 if is_local else 401)
        assert (await node.ask(path, token=READ)).status == 200


async def test_other_authorizations_are_refused(node: Served) -> None:
    for value in ("", "Bearer", "Bearer ", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer ÿÿ"):
        reply = await node.ask(LOOK[1], token=None, headers={"Authorization": value})
        assert reply.status == 401, value
        assert TOKEN.encode() not in reply.body, value
    # A token in the query is none.
    assert (await node.ask(f"{LOOK[1]}?token={TOKEN}", token=None)).status == 401


LOCAL_NAMES = ("127.0.0.1", "localhost:1", "LOCALHOST", "[::1]:8222")
OTHER_NAMES = (
    *("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8222"),
    *("", "[::1"),
)


async def test_only_local_names_of_a_local_server_are_answered(node: Served) -> None:
    is_local = node.node.config.admin.bind.startswith("127.")
    for host in (*LOCAL_NAMES, *OTHER_NAMES):
        for path in ("/", LOOK[1], "/livez"):
            reply = await node.ask(path, headers={"Host": host})
            assert (reply.status == 421) == (is_local and host in OTHER_NAMES), (host, path)


async def test_whoever_says_no_name_is_no_browser(node: Served) -> None:
    reader, writer = await connect(node.admin.url)
    writer.write(b"GET /livez HTTP/1.0\r\n\r\n")
    assert (await reader.readline()).split()[1] == b"200"
    await hang_up(writer)


async def test_odd_origins_are_nothing_to_whoever_has_a_token(node: Served) -> None:
    for origin in ("null", "https://[", "\t"):
        reply = await node.ask(
            CHANGE[1], method="POST", data={"queue": "orders"}, headers={"Origin": origin}
        )
        assert reply.status == 200, origin


# HTTPS.


class Certificates(NamedTuple):
    """Files of two roots: ours signed the server and Ann, the other signed Eve."""

    trust: str
    server: NodeCertificate
    ann: NodeCertificate
    eve: NodeCertificate

    def settings(self) -> dict[str, str]:
        return {
            "certificate": str(self.server.certificate),
            "key": str(self.server.key),
            "client_trust": self.trust,
        }

    def shown(self, who: NodeCertificate | None) -> Tls:
        if who is None:
            return Tls(trust=self.trust)
        return Tls(trust=self.trust, certificate=str(who.certificate), key=str(who.key))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    ours, others = tmp_path_factory.mktemp("ours"), tmp_path_factory.mktemp("others")
    trust = admin.create_root(ours).certificate
    admin.create_root(others)
    server = admin.issue(ours, "server", hosts=["127.0.0.1"])
    return Certificates(str(trust), server, admin.issue(ours, "ann"), admin.issue(others, "eve"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def secure(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> AsyncIterator[Served]:
    """A node that serves HTTPS."""
    async with served(tmp_path_factory.mktemp("secure"), admin=certificates.settings()) as node:
        await node.node.queues.declare("orders")
        yield node


async def test_a_certificate_allows_everything(secure: Served, certificates: Certificates) -> None:
    assert secure.admin.url.startswith("https://127.0.0.1:")
    client = Client(secure.admin.url, tls=certificates.shown(certificates.ann))
    paused = await asyncio.to_thread(client.call, "queue.pause", {"queue": "orders"})
    assert paused["is_paused"] is True


async def test_other_pages_cannot_use_a_certificate(
    secure: Served, certificates: Certificates
) -> None:
    context = certificates.shown(certificates.ann).context()
    others = ("https://evil.example", "null", "https://127.0.0.1:1", "https://[")
    for origin, status in ((secure.admin.url, 200), *((it, 403) for it in others)):
        reply = await secure.ask(
            CHANGE[1],
            method="POST",
            data={"queue": "orders"},
            token=None,
            headers={"Origin": origin},
            context=context,
        )
        assert reply.status == status, origin


async def test_without_a_trusted_certificate_a_token_is_needed(
    secure: Served, certificates: Certificates
) -> None:
    url, tls = secure.admin.url, certificates.shown(None)
    assert await asyncio.to_thread(Client(url, TOKEN, tls=tls).call, "queue.ls")
    with pytest.raises(Forbidden, match="a token is needed"):
        await asyncio.to_thread(Client(url, tls=tls).call, "queue.ls")
    stranger = Client(url, TOKEN, tls=certificates.shown(certificates.eve))
    with pytest.raises(ConnectionClosedError):
        await asyncio.to_thread(stranger.call, "queue.ls")


async def test_the_card_tells_which_certificate_to_trust(secure: Served) -> None:
    with pytest.raises(TlsError, match="cannot be trusted"):
        await asyncio.to_thread(Client(secure.admin.url, TOKEN).call, "queue.ls")
    directory = secure.node.config.data
    [card] = find_nodes(directory)
    client = Client.of(card, directory, token=TOKEN)
    assert await asyncio.to_thread(client.call, "queue.ls")


async def test_certificates_that_cannot_be_used(tmp_path: Path, certificates: Certificates) -> None:
    refused = r"admin\.(certificate|client_trust) .*cannot be used"
    for broken in ("certificate", "key", "client_trust"):
        settings = {**certificates.settings(), broken: str(tmp_path / "missing.pem")}
        with pytest.raises(ConfigError, match=refused):
            async with served(tmp_path, admin=settings):
                pytest.fail(f"it was started without {broken}")
