"""Who can do what to a node from outside, in one sentence: logged when it starts."""

from __future__ import annotations

import logging
from typing import NamedTuple

from postroad.core import Address
from postroad.core.names import is_loopback, to_address

from .settings import Layer, NodeConfig

_MAY = {"off": "do nothing here", "read": "look at this node", "change": "look and change things"}


class Exposure(NamedTuple):
    """What is open to whom."""

    text: str
    level: int
    """Of the log: strangers on a network who can join are worth a warning."""


def describe_exposure(config: NodeConfig) -> Exposure:
    """Who can join, what operators of other members may do, and who can ask the HTTP API."""
    bind = to_address(config.node.bind)
    parts = [_describe_joining(config, bind)]
    if config.admin.enabled and config.has(Layer.CLUSTER):
        parts.append(f"operators of other members may {_MAY[config.admin_remote]} (admin.remote)")
    if config.admin.enabled:
        parts.append(_describe_api(config))
    is_open = not config.is_closed and not is_loopback(bind.host)
    return Exposure("; ".join(parts), logging.WARNING if is_open else logging.INFO)


def _describe_joining(config: NodeConfig, bind: Address) -> str:
    if config.is_closed:
        has_certificates = config.tls is not None and config.tls.mutual
        proof = "a certificate of tls.ca" if has_certificates else "the secret of the cluster"
        return f"only nodes with {proof} are heard"
    return (
        f"{_who_reaches(bind)} can join cluster {config.node.cluster!r} and use what members offer "
        "each other, until it is closed by node.secret_file or [tls]"
    )


def _describe_api(config: NodeConfig) -> str:
    bind = config.admin_address
    is_clear = config.admin.certificate is None and not is_loopback(bind.host)
    how = ", which is sent in the clear without admin.certificate" if is_clear else ""
    return f"{_who_reaches(bind)} can ask its HTTP API with a token{how}"


def _who_reaches(bind: Address) -> str:
    if is_loopback(bind.host):
        return "every program of this machine"
    return f"everybody who reaches {bind}"
