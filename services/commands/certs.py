"""`quire certs`: a local authority, a certificate for each service, and some for people and callers.

Knows which certificates a suite needs and what is kept when it is run again; the authority makes them.
"""

import argparse
import importlib.util
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from services.chassis.fatal import ConfigError, FatalError
from services.chassis.tls import MONITOR, OPERATOR, SERVICES, peer_name
from services.domain.document_values import a_name
from services.domain.errors import InvalidField

if TYPE_CHECKING:
    from services.commands.authority import Pair

AUTHORITY = "ca"
GATEWAY, REDIS = "gateway", "redis"
"""Those that are called by an address, and not by their role alone."""
USUAL_NAMES = ("localhost", "127.0.0.1", "::1")
AUTHORITY_DAYS, USUAL_DAYS, MAX_DAYS = 3650, 397, 3650
_EXAMPLES = """examples:
  quire certs certs                                 for this machine
  quire certs certs --name quire.example.com --name 10.0.0.7
  quire certs certs --client team-a                 one more, for callers of a tenant
  quire certs certs --renew                         new certificates from the same authority
"""


def main(argv: Sequence[str]) -> int:
    args = _parser().parse_args(argv)
    if importlib.util.find_spec("cryptography") is None:
        raise FatalError(
            "quire certs needs the package `cryptography`: pip install 'quire[certs]' (or any other maker "
            "of certificates: docs/deploy.md says which names they must have)"
        )
    if not 1 <= args.days <= MAX_DAYS:
        raise ConfigError(f"--days must be 1 to {MAX_DAYS}, got {args.days}")
    clients = [_checked(name) for name in args.client]
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise FatalError(f"the folder {args.out} cannot be made: {exc.strerror}") from exc
    _make(args.out.resolve(), args.name, clients, days=args.days, renew=args.renew)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="quire certs",
        description="Make a local authority and, from it, a certificate for each service (Redis too), one "
        "for an operator's commands, one for who reads metrics, and one for each --client. What is there is "
        "kept, the authority always.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("out", type=Path, help="folder of the files")
    parser.add_argument(
        *("--name", "-n"),
        action="append",
        default=[],
        metavar="HOST",
        help="name or address of the gateway or Redis, beside this machine's (may be repeated)",
    )
    parser.add_argument(
        "--client",
        action="append",
        default=[],
        metavar="NAME",
        help="certificate for callers; put NAME into `certificates` of their tenant (may be repeated)",
    )
    parser.add_argument(
        "--days", type=int, default=USUAL_DAYS, help=f"how long they are valid [default {USUAL_DAYS}]"
    )
    parser.add_argument("--renew", action="store_true", help="make certificates anew that are there already")
    return parser


def _make(out: Path, hosts: Sequence[str], clients: Sequence[str], *, days: int, renew: bool) -> None:
    from services.commands.authority import Authority

    own = _pair(out, AUTHORITY)
    if own.cert.exists():
        authority = Authority.read(own)
        print(f"kept  {own.cert}: {_until(own)}")
    elif own.key.exists():
        raise FatalError(f"{own.key} is there and {own.cert} is not: put it back, or take another folder")
    else:
        authority = Authority.make(own, days=AUTHORITY_DAYS)
        print(f"made  {own.cert}: {_until(own)}; keep {own.key.name} away from the services")
    wanted: dict[str, tuple[tuple[str, ...], bool]] = {
        role: ((peer_name(role),), role in SERVICES) for role in (*SERVICES, OPERATOR, MONITOR)
    }
    for called in (GATEWAY, REDIS):
        names = (peer_name(called), *hosts, *USUAL_NAMES, socket.gethostname(), called)
        wanted[called] = (tuple(dict.fromkeys(names)), True)
    wanted |= {name: ((name,), False) for name in clients}
    for name, (has_names, serves) in wanted.items():
        pair = _pair(out, name)
        if pair.is_there and not renew:
            is_called = name in (GATEWAY, REDIS)
            missing = [host for host in hosts if is_called and host not in pair.names()]
            hint = f", without {', '.join(missing)}: --renew makes it anew" if missing else ""
            print(f"kept  {pair.cert}: {_until(pair)}{hint}")
            continue
        authority.certify(pair, has_names, days=days, serves=serves)
        print(f"made  {pair.cert}: {_until(pair)}")
    print(f'\n[tls]\nca = "{own.cert}"\ncert = "{out}/{{service}}.pem"\nkey = "{out}/{{service}}.key"')


def _pair(out: Path, name: str) -> "Pair":
    from services.commands.authority import Pair

    return Pair(out / f"{name}.pem", out / f"{name}.key")


def _until(pair: "Pair") -> str:
    return f"valid until {pair.read().not_valid_after_utc:%Y-%m-%d}"


def _checked(name: str) -> str:
    """Return a caller's name: one that can be taken for a service's would open every hop."""
    try:
        a_name("--client", name)
    except InvalidField as error:
        raise ConfigError(error.message) from error
    if name in (*SERVICES, OPERATOR, MONITOR, REDIS, AUTHORITY) or name.endswith(peer_name("")):
        raise ConfigError(f"--client must be no service's name, got {name!r}")
    return name
