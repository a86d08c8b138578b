"""`quire drain`: take one worker out of service without losing a request.

Knows flags and how the answer looks; the scheduler and the worker do it.
"""

import argparse
import asyncio
from collections.abc import Sequence

from services.chassis.fatal import FatalError
from services.commands.output import add_output_flags, print_json
from services.commands.tls_flags import add_tls_flags, operator_tls
from services.domain.errors import ServeError
from services.launcher.ports import LOOPBACK, Ports
from services.rpc.fleet_control import drain_worker


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="quire drain",
        description="Let a worker take no new requests; what it runs, it finishes. `quire status` shows when "
        "nothing runs there any more. It takes requests again when its process has been restarted.",
        epilog="examples:\n  quire drain worker-1\n  quire drain worker-1 --scheduler 10.0.0.7:50052 --json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("worker", help="its name, as in `quire status`")
    parser.add_argument("--port-offset", type=int, default=0, help="that `quire up` was given [default 0]")
    parser.add_argument("--scheduler", metavar="HOST:PORT", help="a scheduler elsewhere")
    add_tls_flags(parser.add_argument_group("TLS"))
    add_output_flags(parser)
    args = parser.parse_args(argv)
    scheduler = args.scheduler or f"{LOOPBACK}:{Ports(args.port_offset).scheduler}"
    try:
        num_running = asyncio.run(drain_worker(scheduler, args.worker, operator_tls(args)))
    except ServeError as error:
        raise FatalError(f"{error.message} (asked the scheduler at {scheduler})") from error
    if args.json:
        print_json({"worker": args.worker, "running": num_running})
    else:
        print(f"{args.worker} takes nothing new; {num_running} requests still run there")
    return 0
