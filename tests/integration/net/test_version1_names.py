"""Protocol version 1 sends IP addresses, so a name that does not resolve cannot be advertised."""

import pytest

from postroad.core.errors import ConfigError
from postroad.net import MessagingService, ProtocolConfig
from tests.support.deadlines import eventually

UNRESOLVABLE = "no-such-host.invalid:0"


@pytest.mark.parametrize("profile", ["documented", "zeebe"])
async def test_service_of_version_1_alone_does_not_start_under_a_name_without_ip_address(
    profile: str,
) -> None:
    protocol = ProtocolConfig(profile=profile, version_max=1)
    service = MessagingService(
        "demo", "alpha", "127.0.0.1:0", advertise=UNRESOLVABLE, protocol=protocol
    )
    with pytest.raises(ConfigError, match=r"version 1: host 'no-such-host.invalid' has no IP"):
        await service.start()
    await service.stop()


@pytest.mark.parametrize("profile", ["documented", "zeebe"])
async def test_service_without_ip_address_declines_version_1(
    profile: str, caplog: pytest.LogCaptureFixture
) -> None:
    both = ProtocolConfig(profile=profile, version_max=2)
    oldest = ProtocolConfig(profile=profile, version_max=1)
    async with (
        MessagingService(
            "demo", "alpha", "127.0.0.1:0", advertise=UNRESOLVABLE, protocol=both
        ) as named,
        MessagingService("demo", "beta", "127.0.0.1:0", protocol=both) as peer,
        MessagingService("demo", "gamma", "127.0.0.1:0", protocol=oldest) as old,
    ):
        assert "protocol version 1 is off" in caplog.text
        named.serve("echo", lambda message: message.payload)
        assert await peer.request(named.bound_address, "echo", b"x") == b"x"
        with pytest.raises(ConnectionError):
            await old.request(named.bound_address, "echo", b"x", timeout=5)
        await eventually(lambda: named.statistics().versions_declined == 1)
        assert "offered protocol version 1 and was answered 2" in caplog.text
        assert "Traceback" not in caplog.text
