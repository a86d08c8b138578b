"""A `gateway_rig` with its admin door on a port of its own, and the `quire tenant` command against it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from gateway.config import GatewayConfig
from gateway.doors import build_admin_server
from gateway.doors_tls import DoorsTls
from gateway.stores.tenants import RedisTenantLog
from services import cli
from services.chassis.grpc import create_channel
from services.chassis.redis import connect
from tests.fakes.gateway_rig import ADMIN_KEY, Rig, gateway_rig


@dataclass
class AdminRig:
    """A gateway with its admin door."""

    rig: Rig
    port: int
    channel: grpc.aio.Channel

    async def quire(self, *words: str, key: str = ADMIN_KEY) -> int:
        """Run `quire tenant` as a command line; return its exit code."""
        flags = ["--admin", f"127.0.0.1:{self.port}", "--admin-key", key]
        return await asyncio.to_thread(cli.main, ["tenant", *words, *flags])


@asynccontextmanager
async def admin_rig(redis_url: str, **options: Any) -> AsyncIterator[AdminRig]:
    """Start a gateway whose tenants are in a real Redis."""
    redis = connect(redis_url, limit_s=20.0)
    async with gateway_rig(tenant_log=RedisTenantLog(redis), **options) as rig:
        server, health, port = build_admin_server(GatewayConfig(admin_port=0), rig.parts, DoorsTls())
        await server.start()
        health.set_serving()
        channel = create_channel(f"127.0.0.1:{port}")
        try:
            yield AdminRig(rig, port, channel)
        finally:
            await channel.close()
            await server.stop(0.1)
    await redis.close()
