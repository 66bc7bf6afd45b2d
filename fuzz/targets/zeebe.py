"""Versions 1 and 2 of profile `zeebe`."""

from __future__ import annotations

from fuzz.addressed import addressed_target
from postroad.wire.codecs import ZeebeCodec

TARGETS = [addressed_target("zeebe", ZeebeCodec, version) for version in (1, 2)]
