"""What the parameters of operations mean, for the help of their commands."""

from __future__ import annotations

from postroad.admin.operations import Operation

MEANINGS = {
    "action": "Service and action, as orders.create.",
    "arguments": "What it begins with, as amount=5; a text of digits is zip='\"0815\"'.",
    "body": "The message: JSON if it can be, else text.",
    "cell": "Its name, or name@domain.",
    "command": "What it is told; `help` asks what it knows.",
    "data": "What the event tells, as id=17.",
    "destination": "Only routes to such names, as printer*.",
    "dlq.id": "The number of the dead letter, as dlq ls tells it.",
    "event": "The name of the event, as order.created.",
    "flow": "The name of the flow, as flow definitions tells it.",
    "flow.id": "The id of the flow, as flow ls tells it.",
    "flow.pause-schedule.name": "The schedule, as flow schedules tells it.",
    "flow.query.name": "What the code answers for, with ctx.set_query_handler.",
    "flow.result.id": "The id of the flow, or what it was begun as.",
    "flow.resume-schedule.name": "The schedule, as flow schedules tells it.",
    "flow.run-schedule.name": "The schedule, as flow schedules tells it.",
    "flow.show.id": "The id of the flow, or what it was begun as.",
    "flow.signal.name": "The signal that the code waits for.",
    "flow.unschedule.name": "The schedule, as flow schedules tells it.",
    "ids": "Numbers of dead letters, as dlq ls tells them.",
    "internal": "Those too that every node has.",
    "job": "Its name, as job ls tells it.",
    "member": "The name of a node, as cluster ls tells it.",
    "params": "What the action is told, as count=2; a text of digits is zip='\"0815\"'.",
    "path": "A cell as name or name@domain, or the name of a queue.",
    "peer": "The node that the mail is for, as bridge ls tells it.",
    "job.id": "One dead segment, as job dead-letters tells it.",
    "queue": "The name of the queue, as queue ls tells it.",
    "queue.peek.id": "Only the message of this id.",
    "service": "The name of a service, as service ls tells it.",
    "step": "The number of the step, as flow history tells it; those before it are kept.",
    "target": "Only routes by way of such names.",
    "text": "An id, or the beginning of a name.",
    "timeout_s": "Seconds to wait.",
    "to": "The queue that takes them.",
    "trace.id": "The id of the trace, as trace ls tells it.",
    "type": "Only routes of this type.",
    "value": "What is sent with it: JSON if it can be, else text.",
}
"""By name; before that, by the operation or its noun and the name."""


def meaning_of(operation: Operation, name: str) -> str:
    """What a parameter means; empty if that needs no words."""
    for key in (f"{operation.name}.{name}", f"{operation.noun}.{name}", name):
        if key in MEANINGS:
            return MEANINGS[key]
    return ""
