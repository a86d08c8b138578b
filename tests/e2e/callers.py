"""Callers in a closed loop: each asks its own question again and again and knows the right answer.

They tell whole answers, typed errors and wrong answers apart; what may happen is the tests' business.
"""

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from services.client import AsyncClient
from services.domain.errors import Code, ServeError

PAUSE_S = 0.05
"""Before a caller who was refused asks again."""


class Callers:
    """`async with` runs them; leaving lets the last answers come."""

    def __init__(self, clients: Sequence[AsyncClient], num_callers: int, num_tokens: int) -> None:
        """Spread callers over `clients`; one who is refused before the start goes on to the next client."""
        self._clients = clients
        self._num_callers = num_callers
        self._num_tokens = num_tokens
        self._answers: dict[int, tuple[int, ...]] = {}
        self._leaving = False
        self._tasks: list[asyncio.Task[None]] = []
        self.num_whole = 0
        self.num_wrong = 0
        self.refused: list[ServeError] = []
        """What callers were told before anything was computed for them: ask again or elsewhere."""
        self.failed: list[ServeError] = []
        """All other errors."""

    async def __aenter__(self) -> Self:
        for number in range(self._num_callers):
            self._answers[number] = await self._ask(self._clients[0], number)
        self._tasks = [asyncio.create_task(self._loop(number)) for number in range(self._num_callers)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leaving = True
        if error is not None:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        else:
            await asyncio.gather(*self._tasks)

    async def _loop(self, number: int) -> None:
        turn = number
        while not self._leaving:
            client = self._clients[turn % len(self._clients)]
            try:
                answer = await self._ask(client, number)
            except ServeError as error:
                self._count(error)
                turn += 1
                await asyncio.sleep(PAUSE_S)
                continue
            self.num_whole += 1
            self.num_wrong += answer != self._answers[number]

    def _count(self, error: ServeError) -> None:
        usage = error.detail.usage
        is_early = error.code is Code.UNAVAILABLE and (usage is None or usage.output_tokens == 0)
        (self.refused if is_early else self.failed).append(error)

    async def _ask(self, client: AsyncClient, number: int) -> tuple[int, ...]:
        whole = await client.generate_text(
            [500 + number] * 40,
            max_output_tokens=self._num_tokens,
            ignore_eos=True,
            seed=number,
            return_token_ids=True,
        )
        ids = whole.choices[0].token_ids
        assert len(ids) == whole.receipt.usage.output_tokens
        return ids
