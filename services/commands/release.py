"""`quire release`: serve a prompt again that is refused because workers died with it.

Knows flags and how the answer looks; the scheduler does it.
"""

import argparse
import asyncio
from collections.abc import Sequence

from services.chassis.fatal import FatalError
from services.commands.output import add_output_flags, print_json
from services.commands.tls_flags import add_tls_flags, operator_tls
from services.domain.errors import ServeError
from services.launcher.ports import LOOPBACK, Ports
from services.rpc.fleet_control import release_quarantine


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="quire release",
        description="Serve a prompt again that is refused because two workers died with it. `quire status` "
        "shows which are; each is served again by itself after a while.",
        epilog="examples:\n  quire release 5f0c66d2b1a94e07a1d2c3b4e5f60718\n  quire release --all",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("digest", nargs="?", help="of the prompt, as in `quire status`")
    which.add_argument("--all", action="store_true", help="every prompt")
    parser.add_argument("--port-offset", type=int, default=0, help="that `quire up` was given [default 0]")
    parser.add_argument("--scheduler", metavar="HOST:PORT", help="a scheduler elsewhere")
    add_tls_flags(parser.add_argument_group("TLS"))
    add_output_flags(parser)
    args = parser.parse_args(argv)
    try:
        digest = b"" if args.all else bytes.fromhex(args.digest)
    except ValueError:
        parser.error(f"digest must be hexadecimal, got {args.digest}")
    if not args.all and not digest:
        parser.error("digest must not be empty")
    scheduler = args.scheduler or f"{LOOPBACK}:{Ports(args.port_offset).scheduler}"
    try:
        num_released = asyncio.run(release_quarantine(scheduler, digest, operator_tls(args)))
    except ServeError as error:
        raise FatalError(f"{error.message} (asked the scheduler at {scheduler})") from error
    if args.json:
        print_json({"released": num_released})
    else:
        print(f"{num_released} prompts are served again")
    return 0
