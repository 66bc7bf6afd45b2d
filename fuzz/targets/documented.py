"""Versions 1 and 2 of profile `documented`."""

from __future__ import annotations

from fuzz.addressed import addressed_target
from postroad.wire.codecs import DocumentedCodec

TARGETS = [addressed_target("documented", DocumentedCodec, version) for version in (1, 2)]
