"""Where the processes of a suite are, as flags say it: this machine's by default.

Knows flags and ports; asks nobody.
"""

import argparse

from services.commands.tls_flags import add_tls_flags
from services.launcher.ports import LOOPBACK, Ports

NO_SUITE = "start a suite with `quire up`, or say where one is: --port-offset, --scheduler HOST:PORT"
"""For who asks where nobody answers."""


def add_suite_flags(parser: argparse.ArgumentParser, *, gateway: bool = True) -> None:
    """Add the flags that `addresses` reads, and those of TLS.

    Args:
        gateway: Whether the command asks a gateway too.
    """
    parser.add_argument("--port-offset", type=int, default=0, help="that `quire up` was given [default 0]")
    parser.add_argument("--scheduler", metavar="HOST:PORT", help="a scheduler elsewhere")
    parser.add_argument("--kvmanager", metavar="HOST:PORT", help="a kvmanager elsewhere")
    if gateway:
        parser.add_argument("--gateway", metavar="HOST:PORT", help="a gateway elsewhere")
    add_tls_flags(parser.add_argument_group("TLS"))


def addresses(args: argparse.Namespace) -> dict[str, str]:
    """Return host:port of what the command asks, by role."""
    ports = Ports(args.port_offset)
    here = {"gateway": ports.gateway, "scheduler": ports.scheduler, "kvmanager": ports.kvmanager}
    given = vars(args)
    return {role: given[role] or f"{LOOPBACK}:{port}" for role, port in here.items() if role in given}
