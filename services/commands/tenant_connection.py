"""Flags that say which admin door to call, with which key.

Knows where `quire up` of the same user left its key; makes no call.
"""

import argparse
import os
import tomllib
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from services.artifacts.model_cache import cache_folder
from services.chassis.fatal import ConfigError, FatalError
from services.chassis.grpc import split_address
from services.chassis.tls import open_channel
from services.commands.output import add_output_flags
from services.commands.tls_flags import add_tls_flags, operator_tls
from services.domain.errors import ServeError
from services.launcher.admin_key import admin_key_file
from services.launcher.ports import LOOPBACK, Ports
from services.rpc.tenant_admin import TenantAdminClient

Command = Callable[[TenantAdminClient, argparse.Namespace], Coroutine[Any, Any, int]]


def add_admin_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("which admin door")
    group.add_argument(
        "--admin", metavar="HOST:PORT", default=os.environ.get("QUIRE_ADMIN"), help="[QUIRE_ADMIN]"
    )
    group.add_argument("--port-offset", type=int, default=0, help="that `quire up` was given [default 0]")
    group.add_argument(
        "--admin-key",
        default=os.environ.get("QUIRE_ADMIN_KEY"),
        help="[QUIRE_ADMIN_KEY, else QUIRE_GATEWAY_ADMIN_KEY, admin_key of --config, `quire up`'s own]",
    )
    group.add_argument("--config", type=Path, default=os.environ.get("QUIRE_CONFIG"), metavar="FILE")
    add_tls_flags(group, config=False)


def add_dry_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="check and show, change nothing")


@asynccontextmanager
async def admin_client(args: argparse.Namespace) -> AsyncIterator[TenantAdminClient]:
    """Open a client as the flags say; a call that fails ends as one line.

    Raises:
        ConfigError: A file cannot be read.
        FatalError: The call failed.
    """
    address = args.admin or f"{LOOPBACK}:{Ports(args.port_offset).admin}"
    tls = operator_tls(args)
    key = args.admin_key or find_key(args.config, split_address(address)[1], os.environ)
    async with open_channel(tls, address, "gateway") as channel:
        try:
            yield TenantAdminClient(channel, key)
        except ServeError as error:
            raise FatalError(_line(error, address)) from error


def find_key(config: Path | None, admin_port: int, environ: Mapping[str, str]) -> str | None:
    """Return the admin key where nobody gave one: the environment's, the file's, or that of a local suite."""
    if given := environ.get("QUIRE_GATEWAY_ADMIN_KEY"):
        return given
    if config is not None:
        try:
            written = tomllib.loads(Path(config).read_text("utf-8"))
        except (OSError, tomllib.TOMLDecodeError) as exc:
            raise ConfigError(f"cannot read {config}: {exc}") from exc
        if key := written.get("gateway", {}).get("admin_key"):
            return str(key)
    kept = admin_key_file(cache_folder(environ), admin_port)
    return kept.read_text() if kept.is_file() else None


def _line(error: ServeError, address: str) -> str:
    if error.reason == "UNAVAILABLE":
        return f"no gateway's admin door answers at {address}: give --admin (and --config where [tls] is on)"
    if error.reason == "BAD_CREDENTIAL":
        return f"{error.message}: an admin key is needed, give --admin-key or QUIRE_ADMIN_KEY"
    return f"{error.message} ({error.reason})"


def add_command(commands: Any, name: str, run: Command, about: str) -> argparse.ArgumentParser:
    """Add one command that is run with a client."""
    parser: argparse.ArgumentParser = commands.add_parser(name, help=about, description=about)
    parser.set_defaults(run=run)
    add_output_flags(parser)
    add_admin_flags(parser)
    return parser
