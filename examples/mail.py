"""Mail for a node that is not there yet: it waits on disk, and is handled once.

Run it with `python -m examples.mail`. Both nodes live in one process to keep it short; nothing
changes when each is a program on a machine of its own, and either may be killed at any moment.
"""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from postroad import run
from postroad.durable import DurableQueues, Message, SqliteStore, StaticPeerDirectory, Transaction
from postroad.net import MessagingService


async def take_order(message: Message, tx: Transaction) -> None:
    """The row, the reply and the end of the message are one transaction: all of it or nothing."""
    await tx.execute("INSERT INTO orders VALUES (?)", (message.body.decode(),))
    tx.reply(message, b"your " + message.body)
    print(f"beta took an order from {message.sender}: {message.body.decode()}")


async def main(directory: Path) -> None:
    served = asyncio.Event()

    def serve(message: Message, tx: Transaction) -> None:
        print(f"alpha got the reply: {message.body.decode()}")
        served.set()

    peers = StaticPeerDirectory()
    async with (
        MessagingService("example", "alpha") as alpha,
        DurableQueues(alpha, SqliteStore(directory / "alpha.db"), directory=peers) as alpha_mail,
    ):
        peers.set("alpha", alpha.address)
        await alpha_mail.consume("served", serve)
        await alpha_mail.send("orders", b"tea", to="beta", reply_to="served")
        print("alpha posted an order, and nobody is there yet")

        async with (
            MessagingService("example", "beta") as beta,
            DurableQueues(beta, SqliteStore(directory / "beta.db"), directory=peers) as beta_mail,
        ):
            async with beta_mail.transaction() as tx:
                await tx.execute("CREATE TABLE orders (what TEXT)")
            await beta_mail.consume("orders", take_order)
            peers.set("beta", beta.address)
            await served.wait()


if __name__ == "__main__":
    with TemporaryDirectory() as place:
        run(main(Path(place)))
