"""Certificates changed under running services."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from postroad.core.errors import ConfigError, TlsError, UsageError
from postroad.net import Limits, MessagingService, Outcome
from tests.support.net.raw_peers import both_loops, failure_of, raw_client
from tests.support.net.tls import Authority, alpha_and_beta, node

# For many handshakes at once on a busy machine.
PATIENT = Limits(connect_timeout_s=4.0, handshake_timeout_s=4.0, stop_grace_s=0.5)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def certificate_of(server: MessagingService, context: ssl.SSLContext) -> str:
    """What a server shows to a new connection."""
    async with raw_client(server.address, context) as peer:
        tls = peer.writer.get_extra_info("ssl_object")
        return ssl.DER_cert_to_PEM_cert(tls.getpeercert(binary_form=True))


@both_loops
async def test_reload_of_a_certificate(authority: Authority) -> None:
    tls = authority.tls("alpha", mutual=False)
    async with alpha_and_beta(authority, alpha=tls) as (alpha, beta):
        context = authority.client_context()
        await beta.request(alpha.address, "echo")
        old = await certificate_of(alpha, context)
        authority.renew("alpha")
        assert await certificate_of(alpha, context) == old
        await alpha.reload_tls()
        new = await certificate_of(alpha, context)
        assert new == authority.certificate_pem("alpha")
        assert new != old
        assert await beta.request(alpha.address, "echo", b"x") == b"x"
        assert beta.statistics().connections_opened == 1
        assert await beta.request(alpha.address, "echo", b"x", keep_alive=False) == b"x"


@both_loops
async def test_reload_of_the_root(authority: Authority) -> None:
    async with alpha_and_beta(authority) as (alpha, beta):
        await beta.request(alpha.address, "echo")
        authority.replace_root("alpha", "beta")
        await alpha.reload_tls()
        assert await beta.request(alpha.address, "echo", b"old link") == b"old link"
        error = await failure_of(beta.request(alpha.address, "echo", keep_alive=False))
        assert error.outcome is Outcome.NOT_SENT
        assert isinstance(error, TlsError), repr(error)
        await beta.reload_tls()
        assert await beta.request(alpha.address, "echo", b"new", keep_alive=False) == b"new"
        assert await alpha.request(beta.address, "echo", b"back") == b"back"
        assert beta.statistics().connections_lost == 0


@both_loops
@pytest.mark.parametrize("broken", ["alpha.pem", "alpha.key", "ca.pem"])
async def test_reload_of_a_bad_file_changes_nothing(authority: Authority, broken: str) -> None:
    async with alpha_and_beta(authority) as (alpha, beta):
        (authority.directory / broken).write_text("no certificate at all")
        with pytest.raises(ConfigError, match=broken):
            await alpha.reload_tls()
        assert await beta.request(alpha.address, "echo", b"x", keep_alive=False) == b"x"
        assert await alpha.request(beta.address, "echo", b"x", keep_alive=False) == b"x"


@both_loops
async def test_reload_turns_nobody_away(authority: Authority) -> None:
    async with alpha_and_beta(authority, limits=PATIENT) as (alpha, beta):

        async def ask(number: int) -> bytes:
            payload = b"%d" % number
            return await beta.request(alpha.address, "echo", payload, keep_alive=False)

        asking = [asyncio.create_task(ask(number)) for number in range(40)]
        for _ in range(5):
            await alpha.reload_tls()
            await asyncio.sleep(0.01)
        assert await asyncio.gather(*asking) == [b"%d" % number for number in range(40)]


@both_loops
async def test_reload_without_tls_is_a_mistake() -> None:
    async with node("alpha", None) as alpha:
        with pytest.raises(UsageError, match="without TLS"):
            await alpha.reload_tls()
