"""What failed leaves nothing behind that the garbage collector cannot see."""

import asyncio
import gc

from postroad.core.errors import MessagingError
from postroad.net import MessagingService, RawMessage


def errors_alive() -> dict[int, MessagingError]:
    """All there are, by identity."""
    gc.collect()
    return {id(error): error for error in gc.get_objects() if isinstance(error, MessagingError)}


async def test_request_whose_connection_was_lost() -> None:
    arrived = asyncio.Event()

    async def never_answer(message: RawMessage) -> bytes:
        arrived.set()
        await asyncio.Event().wait()
        return b""

    async def ask(service: MessagingService, server: MessagingService) -> None:
        # The first one finds no link, the second takes the one of the first.
        first = asyncio.ensure_future(service.request(server.address, "hang", b""))
        await arrived.wait()
        second = asyncio.ensure_future(service.request(server.address, "hang", b""))
        await asyncio.sleep(0)
        await server.stop(grace=0)
        results = await asyncio.gather(first, second, return_exceptions=True)
        assert all(isinstance(result, MessagingError) for result in results)

    before = errors_alive()
    async with MessagingService("demo", "client") as service:
        server = MessagingService("demo", "server")
        await server.start()
        server.serve("hang", never_answer)
        await ask(service, server)
    remaining = errors_alive()
    assert [error for id, error in remaining.items() if id not in before] == []
