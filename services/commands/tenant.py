"""`quire tenant`: tenants, their keys, declarations of all of them, and who changed what.

Knows flags and how things are shown; what may be is checked by the one reader of documents, here before a
call and in the gateway again.
"""

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from services.chassis.fatal import ConfigError
from services.commands.output import console, print_json
from services.commands.tenant_connection import Command, add_command, add_dry_run, admin_client
from services.commands.tenant_file import read_tenants, to_yaml, with_fields
from services.commands.tenant_keys import add_key_commands
from services.commands.tenant_text import change_lines, change_table, tenant_table
from services.commands.tenant_usage import add_usage_command
from services.domain.errors import InvalidField
from services.domain.tenant_document import tenant_from_document, tenant_to_document
from services.rpc.tenant_admin import TenantAdminClient

_EXAMPLES = """examples:
  quire tenant create acme max_concurrency=64 tokens_per_minute=500000
  quire tenant create acme-search parent=acme band=interactive weight=2
  quire tenant set acme-search tokens_per_minute='{per_minute: 100000, burst: 20000}' daily.tokens=5000000
  quire tenant set acme-search weight=              back to the default
  quire tenant show acme-search
  quire tenant keys create acme-search --label ci
  quire tenant keys rotate KEY_ID --overlap-s 86400
  quire tenant usage acme --period month --by tenant --by model --csv
  quire tenant export > tenants.yaml
  quire tenant apply -f tenants.yaml --dry-run
"""


def main(argv: Sequence[str]) -> int:
    args = _parser().parse_args(argv)
    command: Command = args.run
    try:
        return asyncio.run(_run(command, args))
    except InvalidField as error:
        raise ConfigError(error.message) from error


async def _run(command: Command, args: argparse.Namespace) -> int:
    async with admin_client(args) as client:
        return await command(client, args)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="quire tenant",
        description="Say who may use how much. FIELD is a field of a tenant, docs/tenants.md has them all.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    create = add_command(commands, "create", _create, "add a tenant")
    create.add_argument("id")
    create.add_argument("fields", nargs="*", metavar="FIELD=VALUE")
    add_dry_run(create)
    show = add_command(commands, "show", _show, "show one tenant, as declared and as served, or list all")
    show.add_argument("id", nargs="?")
    change = add_command(commands, "set", _set, "change fields of a tenant")
    change.add_argument("id")
    change.add_argument("fields", nargs="+", metavar="FIELD=VALUE")
    add_dry_run(change)
    delete = add_command(commands, "delete", _delete, "take a tenant away, with its keys")
    delete.add_argument("id")
    add_dry_run(delete)
    add_command(commands, "export", _export, "print all tenants as a file for `apply`")
    apply = add_command(commands, "apply", _apply, "make tenants as a file declares them; show what differs")
    apply.add_argument("-f", "--file", required=True, help="YAML with a list `tenants`; - reads the input")
    apply.add_argument("--delete-missing", action="store_true", help="take away what the file does not name")
    add_dry_run(apply)
    audit = add_command(commands, "audit", _audit, "list who changed what, newest first")
    audit.add_argument("id", nargs="?")
    add_usage_command(commands)
    about = "make, list, rotate and revoke keys"
    keys = commands.add_parser("keys", help=about, description=about)
    add_key_commands(keys.add_subparsers(required=True, metavar="COMMAND"))
    return parser


async def _create(client: TenantAdminClient, args: argparse.Namespace) -> int:
    document = with_fields({"id": args.id}, args.fields)
    tenant_from_document(document)
    view = await client.create(document, dry_run=args.dry_run)
    _show_document(view.document, args)
    return 0


async def _show(client: TenantAdminClient, args: argparse.Namespace) -> int:
    if args.id is None:
        views = await client.tenants()
        if args.json:
            for one in views:
                print_json(one)
        else:
            console().print(tenant_table(views))
        return 0
    view, effective = await client.get(args.id)
    if args.json:
        print_json(
            {"tenant": view.document, "etag": view.etag, "declared": view.declared, "served": effective}
        )
        return 0
    _show_document(view.document, args)
    own = tenant_to_document(tenant_from_document(view.document))
    served = tenant_to_document(tenant_from_document(effective))
    if inherited := {name: value for name, value in served.items() if own.get(name) != value}:
        print("# served within its parents' bounds:")
        sys.stdout.write("".join(f"# {line}\n" for line in to_yaml(inherited).splitlines()))
    if view.declared:
        print("# declared in the gateway's configuration file: change it there")
    return 0


async def _set(client: TenantAdminClient, args: argparse.Namespace) -> int:
    view, _ = await client.get(args.id)
    document = with_fields(view.document, args.fields)
    tenant_from_document(document)
    fields = sorted({text.partition("=")[0].partition(".")[0] for text in args.fields})
    # With the etag, since a nested field is changed inside of what was read.
    changed = await client.update(document, fields, etag=view.etag, dry_run=args.dry_run)
    _show_document(changed.document, args)
    return 0


async def _delete(client: TenantAdminClient, args: argparse.Namespace) -> int:
    _show_changes(await client.delete(args.id, dry_run=args.dry_run), args)
    return 0


async def _export(client: TenantAdminClient, args: argparse.Namespace) -> int:
    documents = [
        tenant_to_document(tenant_from_document(one.document))
        for one in await client.tenants()
        if not one.declared
    ]
    if args.json:
        print_json({"tenants": documents})
    else:
        sys.stdout.write(to_yaml({"tenants": documents}))
    return 0


async def _apply(client: TenantAdminClient, args: argparse.Namespace) -> int:
    documents = read_tenants(args.file)
    changes, etag = await client.apply(documents, delete_missing=args.delete_missing, dry_run=True)
    _show_changes(changes, args)
    if changes and not args.dry_run:
        # The etag: what is done is what was shown.
        await client.apply(documents, delete_missing=args.delete_missing, etag=etag)
    if not args.json:
        what = "would change" if args.dry_run else "changed"
        print(f"{len(changes)} {what}" if changes else "all is as declared")
    return 0


async def _audit(client: TenantAdminClient, args: argparse.Namespace) -> int:
    changes = await client.changes(args.id or "")
    if args.json:
        for one in changes:
            print_json(one)
    else:
        console().print(change_table(changes))
    return 0


def _show_document(document: Mapping[str, Any], args: argparse.Namespace) -> None:
    plain = tenant_to_document(tenant_from_document(document))
    if args.json:
        print_json(plain)
    else:
        sys.stdout.write(to_yaml(plain))


def _show_changes(changes: Sequence[Any], args: argparse.Namespace) -> None:
    for one in changes:
        if args.json:
            print_json(one)
        else:
            print("\n".join(change_lines(one)))
