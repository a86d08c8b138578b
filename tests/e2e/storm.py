"""A thousand callers of every kind of manners, drawn from one seed.

Knows how callers come and leave; what must hold afterwards is the tests' business.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from services.client import AsyncClient, AsyncEventStream, IncompleteStream, ServeError
from services.client.values import Delta, Queued, Started
from tests.e2e.stack import Stack
from tests.e2e.stack_setup import BAD_TOKEN

MOST_AT_ONCE = 96
"""Callers at one time; the workers seat far fewer, so that many wait."""
NUM_PALETTE = 400
"""Prompts begin alike now and then, so that prefixes are shared."""


@dataclass(slots=True)
class Tally:
    """How the callers fared."""

    ends: Counter[str] = field(default_factory=Counter)
    """(manner, how it ended), joined by a colon."""
    whole: int = 0
    short: int = 0
    """Answers that ended well with fewer tokens than were asked for: there must be none."""

    def add(self, manner: str, end: str) -> None:
        self.ends[f"{manner}:{end}"] += 1

    def of(self, end: str) -> int:
        return sum(count for name, count in self.ends.items() if name.endswith(f":{end}"))


class Storm:
    """Sends requests of random length, tenant, choices and manners."""

    def __init__(self, stack: Stack, seed: int) -> None:
        self._stack = stack
        self._random = random.Random(seed)
        self._seats = asyncio.Semaphore(MOST_AT_ONCE)
        self._manners: dict[str, Callable[[AsyncClient], Awaitable[str]]] = {
            "stays": self._stay,
            "never_reads": self._never_read,
            "leaves_queue": lambda client: self._leave_at(client, Queued),
            "leaves_prefill": lambda client: self._leave_at(client, Started),
            "leaves_decode": lambda client: self._leave_at(client, Delta),
            "leaves_any_time": self._leave_any_time,
            "deadline": self._deadline,
            "limits": self._limits,
            "hangs_up": self._hang_up,
            "wrong": self._wrong,
            "poison": self._poison,
        }
        self.tally = Tally()

    async def blow(self, num_requests: int) -> None:
        """Send `num_requests`, and return when all callers are gone."""
        tenants = (None, "red", "blue", "green")
        clients = {tenant: self._stack.client(tenant) for tenant in tenants}
        names = list(self._manners)
        async with asyncio.TaskGroup() as group:
            for number in range(num_requests):
                await self._seats.acquire()
                client = clients[tenants[number % 4] if number % 16 != 3 else "green"]
                group.create_task(self._call(names[self._random.randrange(len(names))], client))
        for client in clients.values():
            await client.close()

    async def _call(self, manner: str, client: AsyncClient) -> None:
        try:
            self.tally.add(manner, await self._manners[manner](client))
        except IncompleteStream:
            self.tally.add(manner, "left")
        except ServeError as error:
            self.tally.add(manner, error.reason)
        finally:
            self._seats.release()

    def _stream(self, client: AsyncClient, **options: object) -> tuple[AsyncEventStream, int]:
        """Return a stream and how many tokens it will give."""
        draw = self._random
        length = draw.choice((draw.randint(1, 40), draw.randint(41, 400), draw.randint(401, 1400)))
        first = draw.randint(1, NUM_PALETTE)
        prompt = [first] * (length // 2) + [draw.randint(1, 30_000) for _ in range(length - length // 2)]
        num_choices = draw.choice((1, 1, 1, 2, 4))
        num_tokens = draw.randint(1, 60)
        wanted: dict[str, object] = {
            "n": num_choices,
            "max_output_tokens": num_tokens,
            "ignore_eos": True,
            "cache_opt_out": draw.random() < 0.1,
        }
        return client.generate(prompt, **(wanted | options)), num_choices * num_tokens  # type: ignore[arg-type]

    async def _stay(self, client: AsyncClient) -> str:
        stream, num_tokens = self._stream(client)
        async with stream:
            whole = await stream.completion()
        self.tally.whole += 1
        self.tally.short += whole.receipt.usage.output_tokens != num_tokens
        return "whole"

    async def _never_read(self, client: AsyncClient) -> str:
        stream, _ = self._stream(client)
        async with stream:
            await asyncio.sleep(self._random.random() * 0.05)
        return "left"

    async def _leave_at(self, client: AsyncClient, kind: type) -> str:
        stream, _ = self._stream(client)
        async with stream:
            async for event in stream:
                if isinstance(event, kind):
                    return "left"
        return "whole"

    async def _leave_any_time(self, client: AsyncClient) -> str:
        stream, _ = self._stream(client)
        async with stream:
            try:
                async with asyncio.timeout(self._random.random()):
                    await stream.completion()
            except TimeoutError:
                return "left"
        return "whole"

    async def _deadline(self, client: AsyncClient) -> str:
        stream, _ = self._stream(client, timeout_s=self._random.choice((0.005, 0.05, 0.3, 1.0, 3.0)))
        async with stream:
            await stream.completion()
        return "whole"

    async def _limits(self, client: AsyncClient) -> str:
        name = self._random.choice(("queue_limit_s", "first_token_limit_s", "total_limit_s"))
        stream, _ = self._stream(client, **{name: self._random.choice((0.01, 0.1, 0.5))})
        async with stream:
            await stream.completion()
        return "whole"

    async def _hang_up(self, _: AsyncClient) -> str:
        """Close the whole connection while two streams run on it."""
        client = self._stack.client("red")
        streams = [self._stream(client)[0] for _ in range(2)]
        readers = [asyncio.create_task(_read_what_comes(stream)) for stream in streams]
        await asyncio.sleep(self._random.random() * 0.3)
        await client.close()
        await asyncio.gather(*readers)
        return "left"

    async def _wrong(self, client: AsyncClient) -> str:
        wrong = self._random.choice(({"temperature": 9.0}, {"n": 99}, {"max_output_tokens": 2600}))
        stream, _ = self._stream(client, **wrong)
        async with stream:
            await stream.completion()
        return "whole"

    async def _poison(self, client: AsyncClient) -> str:
        prompt = [self._random.randint(1, 30_000) for _ in range(50)]
        await client.generate_text([*prompt, BAD_TOKEN], max_output_tokens=5)
        return "whole"


async def _read_what_comes(stream: AsyncEventStream) -> None:
    try:
        await stream.completion()
    except ServeError:
        return
