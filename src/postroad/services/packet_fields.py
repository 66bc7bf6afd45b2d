"""The types of the fields of packets, with their limits.

Texts may be longer than those this package makes: others name their nodes and calls as they like.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from msgspec import Meta

NAME_LENGTH_MAX = 1_024
"""Actions, events and groups."""
ID_LENGTH_MAX = 1_024
TEXT_LENGTH_MAX = 4_096
"""Callers, traces: nobody looks them up."""
NODE_ID_LENGTH_MAX = 255
WHOLE_MAX = 2**53 - 1
"""The largest whole number that JavaScript counts without error."""

RENAMED = {
    "cpu_seq": "cpuSeq",
    "instance_id": "instanceID",
    "ip_list": "ipList",
    "is_cancelled": "isCancelled",
    "is_request": "isRequest",
    "need_ack": "needAck",
    "parent_id": "parentID",
    "request_id": "requestID",
}
"""Fields whose names on the wire are not those in Python."""

Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=NAME_LENGTH_MAX)]
Id: TypeAlias = Annotated[str, Meta(max_length=ID_LENGTH_MAX)]
Text: TypeAlias = Annotated[str, Meta(max_length=TEXT_LENGTH_MAX)]
NodeId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=NODE_ID_LENGTH_MAX)]
Object: TypeAlias = dict[str, Any]
Whole: TypeAlias = Annotated[int, Meta(ge=0, le=WHOLE_MAX)]
Milliseconds: TypeAlias = (
    Annotated[int, Meta(ge=0, le=WHOLE_MAX)] | Annotated[float, Meta(ge=0, le=WHOLE_MAX)]
)
