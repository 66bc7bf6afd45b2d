"""The examples of all operations, and how those are said that need more than their signature."""

from __future__ import annotations

from .spelling import Every, Scope, Spelling

_DEAD = Scope(noun="dead letter", operation="dlq.count", field="count")
_DEAD_CHOICE = ("ids", "queue", "reason")
_FLOW = "1a1e418e8a800001"
_FILTERS = {
    "status": "Only those.",
    "name": "Only flows of this name.",
    "where": "Only those whose attribute is so, as customer=ann or 'amount>=5'.",
}

GROUPS: dict[str, tuple[str, str | None]] = {
    "bridge": (
        "\b\nExample: what waits for beta, and why\n"
        "  postroad bridge ls\n"
        "  postroad bridge show beta",
        None,
    ),
    "cells": (
        "\b\nExample: which cells there are, and the way to one\n"
        "  postroad cells ps\n"
        "  postroad cells traceroute printer@beta",
        None,
    ),
    "cluster": (
        "\b\nExample: who is alive\n  postroad cluster ls --watch",
        None,
    ),
    "dlq": (
        "\b\nExample: why messages died, and another try for those of one reason\n"
        "  postroad dlq groups\n"
        "  postroad dlq retry --queue orders --reason failed",
        None,
    ),
    "flow": (
        "\b\nExample: what waits for an operator, why, and another try\n"
        "  postroad flow ls --status parked\n"
        f"  postroad flow show {_FLOW}\n"
        f"  postroad flow retry {_FLOW}",
        None,
    ),
    "node": (
        "\b\nExample: start one, look at it, stop it in good order\n"
        "  postroad node start --app app.py\n"
        "  postroad node health\n"
        "  postroad node stop",
        None,
    ),
    "job": (
        "A job is a TOML or JSON file: what flows where, and through which functions. Given by\n"
        "its name instead, it is a job of a node.\n\n"
        "\b\nExample: see what a job does, run it, and look at what could not be done\n"
        "  postroad job explain clearing.toml\n"
        "  postroad job run clearing.toml\n"
        "  postroad job dead-letters clearing.toml\n\n"
        "\b\nExample: jobs of a node\n"
        "  postroad job ls\n"
        "  postroad job show clearing",
        None,
    ),
    "queue": (
        "\b\nExample: what waits, and a look into a queue that takes nothing out\n"
        "  postroad queue ls\n"
        "  postroad queue peek orders",
        None,
    ),
    "search": (
        "\b\nExample: whatever has this id\n  postroad search 1a1e418e8a800001",
        "find",
    ),
    "service": (
        "\b\nExample: what can be called\n  postroad service actions",
        None,
    ),
    "trace": (
        "\b\nExample: the latest requests, and the way of one\n"
        "  postroad trace ls\n"
        "  postroad trace 4bf92f3577b34da6a3ce929d0e0e4736",
        "show",
    ),
}
"""What the groups say below their summary, and the verb that is meant if there is none."""

_LIMIT = {"limit": "How many at most."}
_PAGE = {**_LIMIT, "after": "Continue a list after this one."}


def _every_flow(said: dict[str, str], *, has_all: bool = False, ended: str | None = None) -> Every:
    return Every(
        operation="flow.ls",
        filters=tuple(_FILTERS),
        said={**said, "limit": 1_000},
        field="id",
        page="before",
        has_all=has_all,
        ended=ended,
    )


_OPEN = _every_flow({}, ended="ended_at")

SPELLINGS: dict[str, Spelling] = {
    "bridge.ls": Spelling(example="bridge ls --watch"),
    "bridge.pause": Spelling(example="bridge pause beta"),
    "bridge.peek": Spelling(example="bridge peek beta --limit 5", help=_LIMIT),
    "bridge.purge": Spelling(
        example="bridge purge beta --dry-run",
        scope=Scope(noun="message", operation="bridge.show", field="depth"),
        warning="What waits for {peer} is removed for good.",
        done="{count} for {peer} removed",
    ),
    "bridge.reset": Spelling(
        example="bridge reset beta --dry-run",
        scope=Scope(noun="message", operation="bridge.show", field="depth"),
        warning="A new epoch with {peer} begins: what waits is sent as new.",
    ),
    "bridge.resume": Spelling(example="bridge resume beta"),
    "bridge.show": Spelling(example="bridge show beta"),
    "cells.domains": Spelling(example="cells domains"),
    "cells.drain": Spelling(example="cells drain printer@beta", listing="cells ps"),
    "cells.kill": Spelling(
        example="cells kill printer@beta --dry-run",
        scope=Scope(noun="cell"),
        warning="Cell {cell} is ended, whatever it does.",
        listing="cells ps",
    ),
    "cells.ping": Spelling(
        example="cells ping printer@beta --count 3",
        help={"count": "How often; it ends after three lost pings in a row.", "size": "In bytes."},
    ),
    "cells.ps": Spelling(
        example="cells ps --domain beta",
        help={"domain": "Only those of one domain.", "pattern": "Only those of such names."},
    ),
    "cells.routes": Spelling(example="cells routes"),
    "cells.run": Spelling(
        example="cells run printer@beta help info", joined="command", listing="cells ps"
    ),
    "cells.traceroute": Spelling(example="cells traceroute printer@beta", listing="cells ps"),
    "cluster.ls": Spelling(example="cluster ls --watch"),
    "cluster.map": Spelling(example="cluster map --json"),
    "cluster.show": Spelling(example="cluster show beta"),
    "dlq.drop": Spelling(
        example="dlq drop 17 18 --yes\ndlq drop --all --dry-run",
        positional=("ids",),
        whole=_DEAD_CHOICE,
        scope=_DEAD,
        warning="Dropped letters are gone for good.",
        done="{count} dropped",
        chunk=500,
        help={
            **_LIMIT,
            "queue": "Those of one queue.",
            "reason": "Those that died of one reason.",
        },
    ),
    "dlq.count": Spelling(
        example="dlq count --queue orders",
        positional=("ids",),
        help={"queue": "Those of one queue.", "reason": "Those that died of one reason."},
    ),
    "dlq.groups": Spelling(example="dlq groups"),
    "dlq.ls": Spelling(
        example="dlq ls --queue orders --reason failed",
        help={
            **_PAGE,
            "queue": "Only those of one queue.",
            "reason": "Only those that died of one reason.",
        },
    ),
    "dlq.retry": Spelling(
        example="dlq retry 17 18\ndlq retry --all",
        positional=("ids",),
        whole=_DEAD_CHOICE,
        scope=_DEAD,
        done="{count} will be tried again{when}",
        chunk=500,
        help={
            **_LIMIT,
            "queue": "Those of one queue.",
            "reason": "Those that died of one reason.",
        },
    ),
    "dlq.show": Spelling(example="dlq show 17"),
    "flow.begin": Spelling(
        example="flow begin pay amount=5 to=ann --client-id order-17",
        positional=("arguments",),
        help={
            "client_id": "Begun only once under this name.",
            "encoded": "The arguments as MessagePack in base64, instead.",
        },
        listing="flow definitions",
    ),
    "flow.cancel": Spelling(
        example=f'flow cancel {_FLOW} --reason "the customer has left"\n'
        "flow cancel --name pay --where customer=ann --dry-run",
        each="id",
        every=_OPEN,
        warning="Flows that are cancelled undo what they have done, and end.",
        done="{count} cancelled{when}",
        help={"reason": "Why: the text of the error that the flow gets."},
    ),
    "flow.counts": Spelling(example="flow counts"),
    "flow.definitions": Spelling(example="flow definitions"),
    "flow.drain": Spelling(example="flow drain", help={"timeout_s": "Seconds to wait for them."}),
    "flow.fork": Spelling(example=f"flow fork {_FLOW} 3"),
    "flow.history": Spelling(example=f"flow history {_FLOW}"),
    "flow.kill": Spelling(
        example=f'flow kill {_FLOW} --reason "paid by hand" --yes\n'
        "flow kill --status parked --name pay --dry-run",
        each="id",
        every=_OPEN,
        scope=Scope(noun="flow", operation="flow.show"),
        warning="A flow that is killed never goes on.",
        done="{count} killed",
        help={"reason": "Why; kept here. The other ends are told its error id only."},
    ),
    "flow.ls": Spelling(
        example="flow ls --status parked --name pay --where customer=ann --where 'amount>=5'",
        help={
            **_LIMIT,
            **_FILTERS,
            "before": "Continue a list: only flows begun before this one.",
        },
    ),
    "flow.pause": Spelling(
        example=f"flow pause {_FLOW}\nflow pause --status running --name pay",
        each="id",
        every=_OPEN,
        done="{count} paused",
    ),
    "flow.pause-schedule": Spelling(
        example="flow pause-schedule nightly", listing="flow schedules"
    ),
    "flow.query": Spelling(example=f"flow query {_FLOW} progress"),
    "flow.record": Spelling(
        example=f"flow record {_FLOW} --json", help={"first": "The number of the first step."}
    ),
    "flow.result": Spelling(
        example=f"flow result {_FLOW} --timeout-s 60",
        help={"is_exact": "As MessagePack in base64, for programs."},
    ),
    "flow.resume": Spelling(
        example=f"flow resume {_FLOW}\nflow resume --name pay",
        each="id",
        every=_every_flow({"status": "paused"}, has_all=True),
        done="{count} will go on{when}",
    ),
    "flow.resume-schedule": Spelling(
        example="flow resume-schedule nightly", listing="flow schedules"
    ),
    "flow.retry": Spelling(
        example=f"flow retry {_FLOW}\nflow retry --all\nflow retry --name pay --where 'amount>=5'",
        each="id",
        every=_every_flow({"status": "parked"}, has_all=True),
        done="{count} will be tried again{when}",
    ),
    "flow.run-schedule": Spelling(example="flow run-schedule nightly", listing="flow schedules"),
    "flow.schedules": Spelling(example="flow schedules"),
    "flow.show": Spelling(example=f"flow show {_FLOW} --watch"),
    "flow.signal": Spelling(
        example=f'flow signal {_FLOW} approved \'{{"by": "ann"}}\'', positional=("value",)
    ),
    "flow.undrain": Spelling(example="flow undrain"),
    "flow.unschedule": Spelling(
        example="flow unschedule nightly --dry-run",
        scope=Scope(noun="schedule"),
        warning="Schedule {name} is forgotten; flows that it has begun go on.",
        listing="flow schedules",
    ),
    "node.config": Spelling(example="node config"),
    "node.drain": Spelling(
        example="node drain --timeout-s 60", help={"timeout_s": "Seconds to wait."}
    ),
    "node.health": Spelling(example="node health --watch"),
    "node.logs": Spelling(example="node logs --limit 20", help=_LIMIT),
    "node.overview": Spelling(example="node overview --watch"),
    "node.show": Spelling(example="node show"),
    "node.stop": Spelling(
        example="node stop --yes",
        scope=Scope(noun="node"),
        warning="The node stops, and everything that it runs.",
    ),
    "job.count": Spelling(example="job count clearing", positional=("id",)),
    "job.dead-letters": Spelling(example="job dead-letters clearing --limit 5", help=_LIMIT),
    "job.drop": Spelling(
        example="job drop clearing 00ff00ff00ff00ff",
        positional=("id",),
        whole=("id",),
        scope=Scope(noun="segment", operation="job.count", field="count"),
        warning="Dropped segments are gone for good.",
    ),
    "job.explain": Spelling(example="job explain clearing"),
    "job.ls": Spelling(example="job ls --watch"),
    "job.retry": Spelling(
        example="job retry clearing 00ff00ff00ff00ff", positional=("id",), whole=("id",)
    ),
    "job.show": Spelling(example="job show clearing --watch"),
    "job.stop": Spelling(
        example="job stop clearing",
        scope=Scope(noun="job"),
        warning="Job {job} stops; started again, it goes on where it was.",
    ),
    "job.submit": Spelling(
        example="job submit clearing --on spark",
        help={
            "on": "Where it runs: local or spark; as the configuration says by default.",
            "restart": "Whether it is started again when it fails.",
        },
    ),
    "job.waiting": Spelling(example="job waiting clearing --limit 5", help=_LIMIT),
    "job.windows": Spelling(example="job windows clearing --limit 5", help=_LIMIT),
    "queue.ls": Spelling(example="queue ls --watch"),
    "queue.move": Spelling(
        example="queue move orders orders-old --dry-run",
        scope=Scope(noun="message", operation="queue.show", field="depth"),
        warning="What waits in {queue} is moved to {to}.",
        done="{count} moved to {to}",
        chunk=500,
        help=_LIMIT,
    ),
    "queue.pause": Spelling(example="queue pause orders"),
    "queue.peek": Spelling(example="queue peek orders --limit 5", help=_LIMIT),
    "queue.post": Spelling(
        example="queue post orders '{\"number\": 17}' --key ann",
        help={
            "peer": "The node it is for; this one by default.",
            "key": "Messages of one key are handled in order.",
            "headers": "What is sent along.",
            "idempotency_key": "Posting again with the same key does nothing, for a week.",
            "delay_s": "Seconds before it is handled.",
            "ttl_s": "Seconds after which it is a dead letter.",
            "priority": "Higher ones are handled first.",
            "encoded": "The bytes in base64, instead of the body.",
        },
    ),
    "queue.purge": Spelling(
        example="queue purge orders --dry-run",
        scope=Scope(noun="message", operation="queue.show", field="depth"),
        warning="What waits in {queue} is removed for good.",
        done="{count} removed from {queue}",
    ),
    "queue.resume": Spelling(example="queue resume orders"),
    "queue.schema": Spelling(
        example="queue schema orders --peer beta",
        help={"peer": "The node that has the queue; this one by default."},
    ),
    "queue.show": Spelling(example="queue show orders"),
    "search.find": Spelling(example="search 1a1e418e8a800001", joined="text", help=_LIMIT),
    "service.actions": Spelling(example="service actions orders", positional=("service",)),
    "service.call": Spelling(
        example="service call orders.create item=book count=2",
        listing="service actions",
        positional=("params",),
        pairs=("params",),
        help={"node_id": "The node that is to do it.", "timeout_s": "Seconds to wait."},
    ),
    "service.emit": Spelling(
        example="service emit order.created id=17 --durable",
        positional=("data",),
        pairs=("data",),
        help={
            "durable": "Keep it until every group has handled it.",
            "broadcast": "To all nodes, and not to one of each group.",
        },
    ),
    "service.events": Spelling(example="service events"),
    "service.ls": Spelling(example="service ls"),
    "service.show": Spelling(example="service show orders"),
    "trace.ls": Spelling(example="trace ls --limit 20", help=_LIMIT),
    "trace.show": Spelling(
        example="trace 4bf92f3577b34da6a3ce929d0e0e4736",
        help={"here": "Ask this node alone, and not all members."},
    ),
}
