"""Collect one call's generations into one body, or chunk them into one stream of server-sent events.

Knows the order of chunks and how several prompts share one answer; shapes are `render`'s.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any

import orjson

from gateway.core.events import Delta, Echo, Event, Finished, Queued, Receipt, Started, StillWaiting
from gateway.http.errors import body_of, internal_error
from gateway.http.naming import in_words_of_body
from gateway.http.parse import Call
from gateway.http.render import Choice, Renderer, Total
from services.domain.errors import ServeError

Events = AsyncGenerator[Event, None]
"""One generation, as the use case tells it."""
Rename = Callable[[int, ServeError], ServeError]
_Entry = tuple[int, Event | Exception | None]

DONE = b"data: [DONE]\n\n"
WAITING = b": waiting\n\n"
STARTED = b": started\n\n"


class Answer:
    """One HTTP call on its way: its id, its choices and its usage.

    Args:
        serialized: Told the seconds spent in building what is sent.
    """

    def __init__(
        self, call: Call, renderer: Renderer, answer_id: str, serialized: Callable[[float], None]
    ) -> None:
        self._call = call
        self._renderer = renderer
        self._id = answer_id
        self._serialized = serialized
        self._created = int(time.time())
        self._total = Total()
        # Made when the use case tells of them: until it has checked `n`, that is any number.
        self._choices: defaultdict[int, Choice] = defaultdict(Choice)

    async def whole(self, sources: Sequence[Events]) -> bytes:
        """Return the complete body once every prompt has its receipt."""
        async with aclosing(merge(sources, self._rename)) as events:
            async for prompt, event in events:
                self._take(prompt, event)
        began = time.perf_counter()
        choices = [
            self._renderer.choice(index, self._choices[index], logprobs=self._call.logprobs)
            for index in range(self._index(len(self._call.requests), 0))
        ]
        body = self._envelope(self._renderer.object, choices) | {"usage": self._total.render()}
        data = orjson.dumps(body)
        self._serialized(time.perf_counter() - began)
        return data

    async def chunks(self, sources: Sequence[Events]) -> AsyncGenerator[bytes, None]:
        """Yield server-sent events; an error is told in-band and ends the stream without [DONE].

        Raises:
            Exception: Nothing has been yielded yet, so it can still be the answer's status.
        """
        has_begun, building_s = False, 0.0
        try:
            async with aclosing(merge(sources, self._rename)) as events:
                async for prompt, event in events:
                    began = time.perf_counter()
                    parts = self._render(prompt, event)
                    building_s += time.perf_counter() - began
                    if parts:
                        has_begun = True
                        yield parts
        except Exception as error:
            if not has_begun:
                raise
            told = error if isinstance(error, ServeError) else internal_error(error)
            yield _data(body_of(told))
            return
        finally:
            self._serialized(building_s)
        if self._call.include_usage:
            yield _data(self._envelope(self._renderer.chunk_object, []) | {"usage": self._total.render()})
        yield DONE

    def _render(self, prompt: int, event: Event) -> bytes:
        match event:
            case Queued() | StillWaiting():
                return WAITING
            case Started():
                openings = map(self._renderer.opening, self._indices(prompt))
                return b"".join(self._chunk(one) for one in openings if one is not None) or STARTED
            case Echo():
                said = Delta(0, event.text, event.tokens)
                return b"".join(self._delta(said, index) for index in self._indices(prompt))
            case Delta():
                return self._delta(event, self._index(prompt, event.choice))
            case Finished():
                return self._chunk(self._renderer.ending(self._index(prompt, event.choice), event))
            case Receipt():
                self._total.add(event)
                return b""

    def _take(self, prompt: int, event: Event) -> None:
        match event:
            case Echo():
                for index in self._indices(prompt):
                    self._choices[index].texts.append(event.text)
                    self._choices[index].tokens.extend(event.tokens)
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

    def _rename(self, prompt: int, error: ServeError) -> ServeError:
        several = len(self._call.requests) > 1
        return in_words_of_body(error, self._call.names, prompt=prompt if several else None)

    def _index(self, prompt: int, choice: int) -> int:
        return prompt * self._call.num_choices + choice

    def _indices(self, prompt: int) -> range:
        """Return the places of a prompt's choices among all."""
        return range(self._index(prompt, 0), self._index(prompt + 1, 0))

    def _delta(self, delta: Delta, index: int) -> bytes:
        logprobs = self._call.logprobs
        return self._chunk(self._renderer.delta(delta, index, self._choices[index], logprobs=logprobs))

    def _chunk(self, choice: dict[str, Any]) -> bytes:
        body = self._envelope(self._renderer.chunk_object, [choice])
        return _data(body | {"usage": None} if self._call.include_usage else body)

    def _envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        model = self._call.requests[0].model
        return {"id": self._id, "object": kind, "created": self._created, "model": model, "choices": choices}


async def merge(sources: Sequence[Events], rename: Rename) -> AsyncGenerator[tuple[int, Event], None]:
    """Yield (index of the source, event) as events come; the first failure ends all of them."""
    if len(sources) == 1:
        try:
            async with aclosing(sources[0]) as events:
                async for event in events:
                    yield 0, event
        except ServeError as error:
            raise rename(0, error) from error.__cause__
        return
    queue: asyncio.Queue[_Entry] = asyncio.Queue(maxsize=len(sources))
    # No TaskGroup: a generator may be resumed and closed by other tasks than the one that began it.
    pumps = [
        asyncio.create_task(_pump(index, source, queue), name="prompt")
        for index, source in enumerate(sources)
    ]
    running = len(pumps)
    try:
        while running:
            index, entry = await queue.get()
            if isinstance(entry, ServeError):
                raise rename(index, entry) from entry.__cause__
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


async def _pump(index: int, source: Events, queue: asyncio.Queue[_Entry]) -> None:
    try:
        async with aclosing(source) as events:
            async for event in events:
                await queue.put((index, event))
    except Exception as error:  # raised again by the one who reads
        await queue.put((index, error))
    else:
        await queue.put((index, None))


def _data(body: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(body) + b"\n\n"
