"""A client process that opens streams and reads them, to be killed meanwhile.

`python -m tests.e2e.many_streams` with host:port, number of streams, tokens of each.
Prints `reading` once half of them give text.
"""

import asyncio
import sys

from services.client import AsyncClient
from tests.e2e.stack_setup import MODEL


async def main(target: str, num_streams: int, num_tokens: int) -> None:
    """Read until killed."""
    num_reading = 0

    async def read(client: AsyncClient, number: int) -> None:
        nonlocal num_reading
        async with client.generate([number] * 30, max_output_tokens=num_tokens, ignore_eos=True) as stream:
            async for _ in stream.text():
                num_reading += 1
                break
            if num_reading == num_streams // 2:
                print("reading", flush=True)
            async for _ in stream.text():
                pass

    async with AsyncClient(target, model=MODEL) as client:
        await asyncio.gather(*(read(client, number + 1) for number in range(num_streams)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
