"""`quire tenant keys`: make, list, rotate and revoke keys.

Knows flags and how keys are shown. A key is printed once, when it is made.
"""

import argparse
from typing import Any

from services.chassis.fatal import FatalError
from services.commands.output import console, print_json
from services.commands.tenant_connection import add_command, add_dry_run
from services.commands.tenant_file import with_fields
from services.commands.tenant_text import key_table, when
from services.rpc.tenant_admin import SCOPES, ShownKey, TenantAdminClient

DAY_S = 86_400


def add_key_commands(commands: Any) -> None:
    """Add the commands below `quire tenant keys`."""
    listing = add_command(commands, "list", _list_keys, "list keys, never what opens")
    listing.add_argument("tenant", nargs="?", default="")
    create = add_command(commands, "create", _create_key, "make a key; it is shown only now")
    create.add_argument("tenant")
    create.add_argument("--label", default="", help="for people")
    create.add_argument(
        "--scope", action="append", choices=SCOPES, help="may be repeated [default generate and usage]"
    )
    create.add_argument("--limit", action="append", metavar="FIELD=VALUE", help="of this key alone")
    create.add_argument("--days", type=float, help="that it lives [default for ever]")
    add_dry_run(create)
    rotate = add_command(commands, "rotate", _rotate_key, "make a key like another, which then ends")
    rotate.add_argument("id")
    rotate.add_argument("--overlap-s", type=int, default=DAY_S, help="that the old one still opens [86400]")
    rotate.add_argument("--days", type=float, help="that the new one lives [default for ever]")
    add_dry_run(rotate)
    revoke = add_command(commands, "revoke", _revoke_key, "take a key away at once")
    revoke.add_argument("id")
    add_dry_run(revoke)


async def _list_keys(client: TenantAdminClient, args: argparse.Namespace) -> int:
    keys = await client.keys(args.tenant)
    if args.json:
        for one in keys:
            print_json(one)
    else:
        console().print(key_table(keys))
    return 0


async def _create_key(client: TenantAdminClient, args: argparse.Namespace) -> int:
    made = await client.create_key(
        args.tenant,
        label=args.label,
        scopes=args.scope or (),
        limits=with_fields({}, args.limit or []),
        lifetime_s=_lifetime_s(args),
        dry_run=args.dry_run,
    )
    _show_key(made, args)
    return 0


async def _rotate_key(client: TenantAdminClient, args: argparse.Namespace) -> int:
    made = await client.rotate_key(
        args.id, overlap_s=args.overlap_s, lifetime_s=_lifetime_s(args), dry_run=args.dry_run
    )
    _show_key(made, args)
    return 0


async def _revoke_key(client: TenantAdminClient, args: argparse.Namespace) -> int:
    gone = await client.revoke_key(args.id, dry_run=args.dry_run)
    if args.json:
        print_json(gone)
    else:
        verb = "would open" if args.dry_run else "opens"
        print(f"key {gone.id} of {gone.tenant} {verb} nothing any more")
    return 0


def _lifetime_s(args: argparse.Namespace) -> int | None:
    if args.days is None:
        return None
    if not 0 < args.days < 1e5:
        raise FatalError(f"--days must be above 0, got {args.days:g}")
    days: float = args.days
    return max(1, round(days * DAY_S))


def _show_key(made: ShownKey, args: argparse.Namespace) -> None:
    if args.json:
        print_json({"key": made.key, "secret": made.secret, "old": made.old})
        return
    if args.dry_run:
        print(f"a key of {made.key.tenant} would be made")
    else:
        print(f"key {made.key.id} of {made.key.tenant}, shown only now:\n{made.secret}")
    if made.old is not None and made.old.expires_at is not None:
        verb = "would end" if args.dry_run else "ends"
        print(f"key {made.old.id} {verb} {when(made.old.expires_at)}")
