"""Where a node of services gets its domain from."""

import pytest

from postroad.core import Address, Limits
from postroad.core.errors import ConfigError
from postroad.core.limits import KIB, MIB
from postroad.services.transporters import make_transporter
from postroad.services.transporters.cells import CellsTransporter, DomainOptions
from postroad.services.transporters.cells_domains import parse_url
from tests.support.cases import each


def test_transporter_is_made_by_name_and_refuses_what_is_wrong() -> None:
    assert parse_url("cells://") == {}
    assert parse_url("cells://10.0.0.1:26502/C1") == {"C1": Address("10.0.0.1", 26502)}
    assert parse_url("CELLS://a:1/C1, [::1]:2/C2/") == {
        "C1": Address("a", 1),
        "C2": Address("::1", 2),
    }
    with pytest.raises(ConfigError) as caught:
        make_transporter("cells://user:hunter2@a:1/C1")
    assert "hunter2" not in str(caught.value)
    with pytest.raises(ConfigError, match="cells://host:port/name"):
        CellsTransporter(options=DomainOptions(zone="east"))
    for said in ("cells", "cells://", "cells://127.0.0.1:1/C1", "Cells://127.0.0.1:1/C1"):
        made = make_transporter(said)
        assert isinstance(made, CellsTransporter)
        assert repr(made) == "<CellsTransporter not connected>"
    for frame_bytes_max, packet_bytes_max in (
        (16 * MIB, 3 * MIB),
        (4 * MIB, 3 * MIB),
        (256 * KIB, 120 * KIB),
        (4 * KIB, 1),
    ):
        options = DomainOptions(limits=Limits(frame_bytes_max=frame_bytes_max))
        made = CellsTransporter("cells://127.0.0.1:1/C1", options=options)
        assert made.packet_bytes_max == packet_bytes_max, (frame_bytes_max, packet_bytes_max)


@each(
    ("nats://a:1/C1", "cells://"),
    ("cells:/a:1/C1", "cells://"),
    ("cells://a:1", "host:port/name"),
    ("cells://a:1/C1,b:2", "host:port/name"),
    ("cells://a/C1", "host:port"),
    ("cells://a:99999/C1", "65535"),
    ("cells://a:1/C1,b:2/C1", "twice"),
    ("cells://a:1/C1,,b:2/C2", "host:port/name"),
    ("cells://a:1/C1?tls=1", "options"),
)
def test_url_that_is_wrong(url: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        make_transporter(url) if url.startswith("cells://") else CellsTransporter(url)
