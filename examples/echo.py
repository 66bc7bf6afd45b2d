"""Two nodes, one question: the smallest complete Postroad program.

Run it with `python -m examples.echo`.
"""

from postroad import run
from postroad.net import MessagingService, RawMessage


def echo(message: RawMessage) -> bytes:
    print(f"beta was asked by {message.peer}: {message.payload.decode()}")
    return message.payload


async def main() -> None:
    async with (
        MessagingService("example", "alpha") as alpha,
        MessagingService("example", "beta") as beta,
    ):
        beta.serve("echo", echo)
        reply = await alpha.request(beta.address, "echo", b"Is anybody there?", timeout=2.0)
        print(f"alpha got the reply: {reply.decode()}")


if __name__ == "__main__":
    run(main())
