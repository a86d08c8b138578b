"""Workers that fail, prompts that bring them down, and strangers at a door: real services over gRPC.

Counts what was served; measures no time. Knows nothing of tenants' limits.
"""

import contextlib
import io
import tempfile
from pathlib import Path

import grpc

from bench.tenants.check import Outcome
from scheduler.core.breaker import BreakerRules, State
from scheduler.core.rules import Rules
from services.chassis.certificate import Files
from services.chassis.errors import ErrorInterceptor
from services.chassis.grpc import add_health_and_reflection, bind, create_channel, create_server
from services.chassis.tls import OPERATOR, Tls, peers_only
from tests.fakes.certificates import TEAM, channel_to, expired, files, foreign, make_certs, outcome
from tests.fakes.fault_fleet import fault_fleet

POISON = 7
NUM_SERVED, MOST_FAILED = 6, 20
"""Requests served in a row that show a breaker to be open, and failures that show that there is none."""
FOR_EVER_S = 1e6


async def breaker(is_on: bool) -> Outcome:
    """Of two workers one computes NaN rows: after a few failures it gets nothing, and all is served."""
    rules = BreakerRules(min_failures=5 if is_on else 0, open_s=FOR_EVER_S, max_open_s=FOR_EVER_S)
    async with fault_fleet(2, Rules(breaker=rules)) as fleet:
        fleet.faults[0].bad_token = POISON
        num_failed = num_served = 0
        # Each prompt is another one: of one that fails again and again only the first failure counts.
        while num_served < NUM_SERVED and num_failed < MOST_FAILED:
            failed = await fleet.ask(POISON, num_failed, num_served) is not None
            num_failed += failed
            num_served += fleet.state_of(0) is State.OPEN and not failed
        return Outcome(num_served == NUM_SERVED, f"{num_failed} failed")


async def quarantine(is_on: bool) -> Outcome:
    """A prompt that ends the engine of whoever computes it takes two of four workers, and no third."""
    async with fault_fleet(4, Rules(quarantine_s=FOR_EVER_S if is_on else 0.0)) as fleet:
        for one in fleet.faults:
            one.crash_token = POISON
        await fleet.ask(1, 2, POISON)
        await fleet.until(lambda: len(fleet.alive) == 2)
        await fleet.ask(1, 2, POISON)
        if not is_on:
            await fleet.until(lambda: not fleet.alive)
        is_served = await fleet.ask(1, 2, 3) is None if fleet.alive else False
        return Outcome(len(fleet.alive) == 2 and is_served, f"{len(fleet.alive)} of 4 live")


async def strangers(is_on: bool) -> Outcome:
    """At a door with mTLS only the roles that it is for get in; the control is that door in plain text."""
    with tempfile.TemporaryDirectory() as name:
        with contextlib.redirect_stdout(io.StringIO()):  # It says what it made.
            folder = make_certs(Path(name) / "certs")
            other = foreign(folder, f"{OPERATOR}.quire.internal", Path(name) / "other")
        tls = Tls(files(folder, "scheduler"), "scheduler") if is_on else None
        server = create_server(interceptors=[ErrorInterceptor(), *peers_only(tls, "gateway", OPERATOR)])
        health = add_health_and_reflection(server, [])
        credentials = None if tls is None else tls.server(asks=True)
        address = f"127.0.0.1:{bind(server, '127.0.0.1:0', credentials=credentials)}"
        await server.start()
        health.set_serving()

        async def gets_in(shown: Files | None) -> bool:
            if not is_on:
                return await outcome(create_channel(address)) is grpc.StatusCode.OK
            channel = channel_to(address, "scheduler", shown, ca=folder / "ca.pem")
            return await outcome(channel) is grpc.StatusCode.OK

        try:
            unknown = (
                None,
                other,
                expired(folder, f"{OPERATOR}.quire.internal", Path(name)),
                files(folder, TEAM),
                files(folder, "worker"),
            )
            num_in = sum([await gets_in(one) for one in unknown])
            num_in += await outcome(create_channel(address)) is grpc.StatusCode.OK
            is_known = await gets_in(files(folder, OPERATOR))
        finally:
            await server.stop(None)
        return Outcome(num_in == 0 and is_known, f"{num_in} of {len(unknown) + 1} let in")
