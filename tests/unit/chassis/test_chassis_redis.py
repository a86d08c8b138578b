"""Against a real server, through a proxy that delays, stalls and cuts."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.chassis.fatal import ConfigError
from services.chassis.redis import Breaker, RedisStore, Script, connect
from services.chassis.redis_trouble import what_to_mend
from services.domain.errors import DependencyDown
from tests.fakes.valkey import Valkey


class Proxy:
    """TCP proxy whose answers come `delay_s` late; None: never (a black hole)."""

    def __init__(self, upstream_port: int) -> None:
        self.delay_s: float | None = 0.0
        self.may_answer = asyncio.Event()
        """Cleared: answers wait until it is set."""
        self.may_answer.set()
        self.port = 0
        self._upstream_port = upstream_port
        self._tasks: set[asyncio.Task[None]] = set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._upstream_port)
        for work in (self._pump(reader, up_writer, False), self._pump(up_reader, writer, True)):
            task = asyncio.ensure_future(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, slow: bool) -> None:
        try:
            while data := await reader.read(65536):
                if slow and self.delay_s is None:
                    continue
                await asyncio.sleep(self.delay_s or 0 if slow else 0)
                if slow:
                    await self.may_answer.wait()
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    def move_to(self, upstream_port: int) -> None:
        """Lead new connections elsewhere and break the others."""
        self._upstream_port = upstream_port
        self.cut()

    def cut(self) -> None:
        """Break every connection."""
        for task in list(self._tasks):
            task.cancel()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Proxy"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        yield self
        server.close()
        self.cut()


@pytest.fixture
async def proxy(valkey_url: str) -> AsyncIterator[Proxy]:
    port = int(valkey_url.rsplit(":", 1)[1].split("/")[0])
    async with Proxy(port).running() as running:
        yield running


@contextlib.asynccontextmanager
async def store_on(port: int, limit_s: float = 20.0) -> AsyncIterator[RedisStore]:
    store = connect(f"redis://127.0.0.1:{port}/0", limit_s=limit_s)
    try:
        yield store
    finally:
        await store.close()


async def comes_up(store: RedisStore) -> None:
    """Wait until a probe has found that Redis answers again."""
    async with asyncio.timeout(60):
        while not store.is_up:
            with contextlib.suppress(DependencyDown):
                await store.execute("PING", limit_s=20)
            await asyncio.sleep(0.01)


async def test_commands_scripts_and_pipelines_answer(proxy: Proxy) -> None:
    async with store_on(proxy.port) as store:
        assert await store.execute("SET", "a", 1) == b"OK"
        assert await store.pipeline([("INCR", "a"), ("GET", "a")]) == [2, b"2"]
        assert await store.run_script(Script("return {KEYS[1], ARGV[1]}"), ["k"], [7]) == [b"k", b"7"]


@pytest.mark.failure("B147")
async def test_a_forgotten_script_is_loaded_again(proxy: Proxy) -> None:
    script = Script("return redis.call('INCR', KEYS[1])")
    async with store_on(proxy.port) as store:
        await store.execute("DEL", "n")
        assert await store.run_script(script, ["n"]) == 1
        await store.execute("SCRIPT", "FLUSH")
        assert await store.run_script(script, ["n"]) == 2


@pytest.mark.failure("B146")
async def test_cancelled_calls_never_leave_a_connection_one_reply_behind(proxy: Proxy) -> None:
    draw = random.Random(146)
    async with store_on(proxy.port, limit_s=20.0) as store:
        await store.pipeline([("SET", f"key{n}", n) for n in range(1000)])
        proxy.delay_s = 0.01

        async def read(n: int) -> bytes:
            if n % 4 == 1:
                return bytes((await store.pipeline([("GET", f"key{n}"), ("GET", f"key{n}")]))[1])
            return bytes(await store.execute("GET", f"key{n}"))

        tasks = [asyncio.create_task(read(n)) for n in range(1000)]
        for task in draw.sample(tasks, 500):
            if draw.random() < 0.2:
                await asyncio.sleep(0.001)
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        answers = {n: got for n, got in enumerate(results) if not isinstance(got, asyncio.CancelledError)}
        assert answers == {n: str(n).encode() for n in answers}
        assert len(answers) >= 500
        assert store.num_waiting == 0


@pytest.mark.failure("B149")
async def test_more_callers_than_connections_all_end_in_time(proxy: Proxy) -> None:
    draw = random.Random(149)
    async with store_on(proxy.port, limit_s=0.5) as store:
        proxy.delay_s = 0.05
        tasks = [asyncio.create_task(store.execute("PING")) for _ in range(500)]
        await asyncio.sleep(0.01)
        for task in draw.sample(tasks, 100):
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(r == b"PONG" or isinstance(r, DependencyDown | asyncio.CancelledError) for r in results)
        assert store.num_waiting == 0
        proxy.delay_s = 0.0
        await comes_up(store)
        assert await store.execute("PING", limit_s=20) == b"PONG"


async def test_a_burst_waits_for_its_turn_while_redis_answers(proxy: Proxy) -> None:
    async with store_on(proxy.port, limit_s=3.0) as store:
        await store.execute("PING", limit_s=20)
        proxy.delay_s = 0.1
        replies = await asyncio.gather(*(store.execute("PING") for _ in range(40)))
    assert replies == [b"PONG"] * 40  # The last after more than the limit.


@pytest.mark.failure("B152")
async def test_a_black_hole_costs_little_and_recovery_is_automatic(proxy: Proxy) -> None:
    async with store_on(proxy.port, limit_s=0.05) as store:
        await store.execute("PING", limit_s=20)
        proxy.delay_s = None
        for _ in range(3):
            with pytest.raises(DependencyDown):
                await store.execute("PING")
        assert not store.is_up
        for _ in range(100):
            with pytest.raises(DependencyDown):
                await store.execute("PING")
        proxy.delay_s = 0.0
        await comes_up(store)
        assert await store.execute("PING", limit_s=20) == b"PONG"


async def test_calls_lost_together_are_one_failure_and_the_next_call_works(proxy: Proxy) -> None:
    async with store_on(proxy.port, limit_s=20.0) as store:
        await store.execute("PING")
        proxy.delay_s = None
        tasks = [asyncio.create_task(store.execute("PING")) for _ in range(10)]
        await asyncio.sleep(0)  # All have begun.
        assert store.num_waiting == len(tasks)
        proxy.cut()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(result) for result in results} == {DependencyDown}
        assert store.is_up
        proxy.delay_s = 0.0
        assert await store.execute("PING") == b"PONG"


@pytest.mark.failure("B146")
async def test_an_error_reply_fails_its_own_call_only(proxy: Proxy) -> None:
    async with store_on(proxy.port) as store:
        answers = await asyncio.gather(
            store.execute("ECHO", "before"),
            store.execute("NO-SUCH-COMMAND"),
            store.pipeline([("ECHO", 1), ("INCR", "a", "b"), ("ECHO", 2)]),
            store.execute("ECHO", "after"),
            return_exceptions=True,
        )
        assert answers[::3] == [b"before", b"after"]
        refused = [one for one in answers[1:3] if isinstance(one, DependencyDown)]
        assert "unknown command" in str(refused[0].__cause__)
        assert "wrong number of arguments" in str(refused[1].__cause__)
        assert store.is_up


async def test_no_server_at_all_is_a_dependency_down() -> None:
    async with store_on(1) as store:
        with pytest.raises(DependencyDown):
            await store.execute("PING")


async def test_a_server_that_is_no_redis_is_a_dependency_down() -> None:
    async def answer_as_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer_as_http, "127.0.0.1", 0)
    async with server, store_on(server.sockets[0].getsockname()[1]) as store:
        with pytest.raises(DependencyDown) as caught:
            await store.execute("PING")
    assert what_to_mend(caught.value).startswith("answers, but not as Redis does")


async def test_what_to_mend_tells_a_refused_password_from_a_redis_that_is_not_there(tmp_path: Path) -> None:
    valkey = Valkey(tmp_path)
    await valkey.start()
    admin = connect(valkey.url, limit_s=20.0)
    await admin.execute("CONFIG", "SET", "requirepass", "right")
    wrong = connect(valkey.url.replace("//", "//:not-so@"), limit_s=20.0)
    with pytest.raises(DependencyDown) as refused:
        await wrong.execute("PING")
    assert "invalid username-password pair" in what_to_mend(refused.value)
    assert "not-so" not in what_to_mend(refused.value)
    await asyncio.gather(admin.close(), wrong.close())
    await valkey.stop()
    async with store_on(valkey.port) as store:
        with pytest.raises(DependencyDown) as gone:
            await store.execute("PING")
    assert what_to_mend(gone.value).endswith("start it")


def test_the_breaker_opens_probes_once_and_closes() -> None:
    breaker = Breaker(failures=2, pause_s=1.0)
    for now in (0.0, 0.1):
        assert breaker.try_pass(now)
        breaker.failed(now)
    assert not breaker.is_closed
    assert not breaker.try_pass(1.0)
    assert breaker.try_pass(1.2)
    assert not breaker.try_pass(1.2)
    breaker.gave_up()
    assert breaker.try_pass(1.2)
    breaker.failed(1.2)
    assert not breaker.try_pass(1.3)
    assert breaker.try_pass(2.3)
    breaker.succeeded()
    assert breaker.is_closed
    assert breaker.try_pass(2.3)


@pytest.mark.parametrize("url", ["nonsense", "http://127.0.0.1:6379/0", "redis://127.0.0.1:port/0"])
def test_what_is_no_address_is_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(ConfigError, match="REDIS_URL") as caught:
        connect(url)
    assert url not in str(caught.value)
