"""The parts a configuration chooses."""

import pytest

from postroad.core.limits import Limits
from postroad.wire import DOCUMENTED, ZEEBE, Profile, Role
from postroad.wire.codecs import DocumentedCodec, Version3Codec, ZeebeCodec
from postroad.wire.config import make_codec, make_heartbeats
from postroad.wire.heartbeat import Heartbeats, ZeebeClientHeartbeats, ZeebeServerHeartbeats
from tests.support.wire.pairs import make_config


@pytest.mark.parametrize(
    ("profile", "version", "codec"),
    [
        (DOCUMENTED, 1, DocumentedCodec),
        (DOCUMENTED, 2, DocumentedCodec),
        (DOCUMENTED.up_to(2), 2, DocumentedCodec),
        (DOCUMENTED, 3, Version3Codec),
        (ZEEBE, 1, ZeebeCodec),
        (ZEEBE, 2, ZeebeCodec),
        (ZEEBE.up_to(1), 1, ZeebeCodec),
    ],
)
def test_codec_of_a_profile_and_version(profile: Profile, version: int, codec: type) -> None:
    config = make_config(profile=profile, limits=Limits(frame_bytes_max=1_000))
    made = make_codec(config, version)
    assert type(made) is codec
    assert made.frame_bytes_max == 1_000
    assert made.sender is None


@pytest.mark.parametrize(
    ("profile", "role", "heartbeats"),
    [
        (DOCUMENTED, Role.CLIENT, Heartbeats),
        (DOCUMENTED, Role.SERVER, Heartbeats),
        (ZEEBE, Role.CLIENT, ZeebeClientHeartbeats),
        (ZEEBE.up_to(1), Role.CLIENT, ZeebeClientHeartbeats),
        (ZEEBE, Role.SERVER, ZeebeServerHeartbeats),
    ],
)
def test_heartbeats_of_a_profile_and_role(profile: Profile, role: Role, heartbeats: type) -> None:
    made = make_heartbeats(make_config(profile=profile), role, lambda: 1)
    assert type(made) is heartbeats
