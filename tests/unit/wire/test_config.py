"""The parts a configuration chooses."""

import pytest

from postroad.core.limits import Limits
from postroad.wire import DOCUMENTED, ZEEBE, ConnectionRole
from postroad.wire.codecs import DocumentedCodec, Version3Codec, ZeebeCodec
from postroad.wire.connection_setup import make_codec, make_heartbeats
from postroad.wire.heartbeats import Heartbeats, ZeebeClientHeartbeats, ZeebeServerHeartbeats
from tests.support.wire.pairs import make_config


def test_codec_and_heartbeats_follow_from_the_profile(subtests: pytest.Subtests) -> None:
    for profile, version, codec in [
        (DOCUMENTED, 1, DocumentedCodec),
        (DOCUMENTED, 2, DocumentedCodec),
        (DOCUMENTED.up_to(2), 2, DocumentedCodec),
        (DOCUMENTED, 3, Version3Codec),
        (ZEEBE, 1, ZeebeCodec),
        (ZEEBE, 2, ZeebeCodec),
        (ZEEBE.up_to(1), 1, ZeebeCodec),
    ]:
        with subtests.test(version=version):
            config = make_config(profile=profile, limits=Limits(frame_bytes_max=1_000))
            actual = make_codec(config, version)
            assert type(actual) is codec
            assert actual.frame_bytes_max == 1_000
            assert actual.sender is None

    for profile, role, heartbeats in [
        (DOCUMENTED, ConnectionRole.CLIENT, Heartbeats),
        (DOCUMENTED, ConnectionRole.SERVER, Heartbeats),
        (ZEEBE, ConnectionRole.CLIENT, ZeebeClientHeartbeats),
        (ZEEBE.up_to(1), ConnectionRole.CLIENT, ZeebeClientHeartbeats),
        (ZEEBE, ConnectionRole.SERVER, ZeebeServerHeartbeats),
    ]:
        with subtests.test(profile=profile):
            beats = make_heartbeats(make_config(profile=profile), role, lambda: 1)
            assert type(beats) is heartbeats
