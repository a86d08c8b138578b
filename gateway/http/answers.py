"""Collect one call's generations into one body, or chunk them into one stream of server-sent events.

Knows the order of chunks and how several prompts share one answer; shapes are `render`'s.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import orjson

from gateway.core.events import Delta, Event, Finished, Queued, Receipt, Started, StillWaiting
from gateway.http.errors import body_of
from gateway.http.parse import Call
from gateway.http.render import Choice, Renderer, Total
from services.domain.errors import ServeError

Events = AsyncGenerator[Event, None]
"""One generation, as the use case tells it."""

DONE = b"data: [DONE]\n\n"
WAITING = b": waiting\n\n"


class Answer:
    """One HTTP call on its way: its id, its choices and its usage."""

    def __init__(self, call: Call, renderer: Renderer, answer_id: str) -> None:
        self._call = call
        self._renderer = renderer
        self._id = answer_id
        self._created = int(time.time())
        self._total = Total()
        self._choices = [Choice() for _ in range(len(call.requests) * call.num_choices)]

    async def whole(self, sources: Sequence[Events]) -> dict[str, Any]:
        """Return the complete body once every prompt has its receipt."""
        async with aclosing(merge(sources)) as events:
            async for prompt, event in events:
                self._take(prompt, event)
        choices = [
            self._renderer.choice(index, choice, logprobs=self._call.logprobs)
            for index, choice in enumerate(self._choices)
        ]
        return self._envelope(self._renderer.object, choices) | {"usage": self._total.render()}

    async def chunks(self, sources: Sequence[Events]) -> AsyncGenerator[bytes, None]:
        """Yield server-sent events; an error is told in-band and ends the stream without [DONE].

        Raises:
            ServeError: Nothing has been yielded yet, so it can still be the answer's status.
        """
        begun = False
        try:
            async with aclosing(merge(sources)) as events:
                async for prompt, event in events:
                    for part in self._render(prompt, event):
                        begun = True
                        yield part
        except ServeError as error:
            if not begun:
                raise
            yield _data(body_of(error))
            return
        if self._call.include_usage:
            yield _data(self._envelope(self._renderer.chunk_object, []) | {"usage": self._total.render()})
        yield DONE

    def _render(self, prompt: int, event: Event) -> list[bytes]:
        match event:
            case Queued() | StillWaiting():
                return [WAITING]
            case Started():
                first = prompt * self._call.num_choices
                openings = map(self._renderer.opening, range(first, first + self._call.num_choices))
                return [self._chunk(opening) for opening in openings if opening is not None]
            case Delta():
                index = self._index(prompt, event.choice)
                offset = self._choices[index].text_length
                self._choices[index].text_length += len(event.text)
                logprobs = self._call.logprobs
                return [self._chunk(self._renderer.delta(index, event, offset, logprobs=logprobs))]
            case Finished():
                return [self._chunk(self._renderer.ending(self._index(prompt, event.choice), event))]
            case Receipt():
                self._total.add(event)
                return []

    def _take(self, prompt: int, event: Event) -> None:
        match event:
            case Delta():
                choice = self._choices[self._index(prompt, event.choice)]
                choice.texts.append(event.text)
                choice.tokens.extend(event.tokens)
            case Finished():
                self._choices[self._index(prompt, event.choice)].finish = event
            case Receipt():
                self._total.add(event)
            case _:
                pass

    def _index(self, prompt: int, choice: int) -> int:
        return prompt * self._call.num_choices + choice

    def _chunk(self, choice: dict[str, Any]) -> bytes:
        body = self._envelope(self._renderer.chunk_object, [choice])
        return _data(body | {"usage": None} if self._call.include_usage else body)

    def _envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        model = self._call.requests[0].model
        return {"id": self._id, "object": kind, "created": self._created, "model": model, "choices": choices}


async def merge(sources: Sequence[Events]) -> AsyncGenerator[tuple[int, Event], None]:
    """Yield (index of the source, event) as events come; the first failure ends all of them."""
    if len(sources) == 1:
        async with aclosing(sources[0]) as events:
            async for event in events:
                yield 0, event
        return
    queue: asyncio.Queue[tuple[int, Event | Exception | None]] = asyncio.Queue(maxsize=len(sources))

    async def pump(index: int, source: Events) -> None:
        try:
            async with aclosing(source) as events:
                async for event in events:
                    await queue.put((index, event))
        except Exception as error:  # raised again below, by the one who reads
            await queue.put((index, error))
        else:
            await queue.put((index, None))

    pumps = [asyncio.ensure_future(pump(i, source)) for i, source in enumerate(sources)]
    running = len(pumps)
    try:
        while running:
            index, entry = await queue.get()
            if isinstance(entry, Exception):
                raise entry
            if entry is None:
                running -= 1
            else:
                yield index, entry
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


def _data(body: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(body) + b"\n\n"
