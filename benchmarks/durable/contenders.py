"""Who takes part, by the name in the table.

Each of ours is compared with each peer; a new one needs a module in `peers` and a line here.
"""

from __future__ import annotations

from functools import partial

from benchmarks.durable.peers import jetstream, postroad_mail, rabbitmq
from benchmarks.durable.processes import Peer

OURS: dict[str, Peer] = {"postroad": Peer(postroad_mail.receive, postroad_mail.send)}
PEERS = {
    "RabbitMQ, durable queue": Peer(rabbitmq.receive, rabbitmq.send, rabbitmq.serve),
    "NATS JetStream, defaults": Peer(jetstream.receive, jetstream.send, jetstream.serve),
    "NATS JetStream, sync always": Peer(
        jetstream.receive, jetstream.send, partial(jetstream.serve, sync_always=True)
    ),
}
CONTENDERS = OURS | PEERS
