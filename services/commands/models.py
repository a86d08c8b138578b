"""`quire models` and `quire pull`: what is served, what is here, and fetching more."""

import argparse
import os
from collections.abc import Sequence

from rich.table import Table

from services.artifacts.errors import ArtifactError
from services.artifacts.fetch import list_models
from services.artifacts.model_cache import cache_folder
from services.chassis.fatal import FatalError
from services.client import Model, ServeError
from services.commands.connection import add_connection_flags, open_client, target_of
from services.commands.output import add_output_flags, console, counted, print_json
from services.launcher.models import fetch


def pull(argv: Sequence[str]) -> int:
    """Fetch models into the cache and print where they lie."""
    parser = argparse.ArgumentParser(
        prog="quire pull",
        description="Fetch a model into the cache folder (QUIRE_CACHE) and print its path.",
        epilog="examples:\n  quire pull smollm2-135m-instruct\n  quire pull hf:organisation/model",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "name", nargs="+", help="known name, hf:org/name where a hub can be reached, or a path"
    )
    parser.add_argument("--force", action="store_true", help="fetch again what is here already")
    add_output_flags(parser)
    args = parser.parse_args(argv)
    for name in args.name:
        try:
            path = fetch(name, cache_folder(os.environ), console(stderr=True), force=args.force)
        except ArtifactError as exc:
            raise FatalError(str(exc)) from exc
        except KeyboardInterrupt:
            return 130
        if args.json:
            print_json({"name": name, "path": str(path)})
        else:
            print(path)
    return 0


def models(argv: Sequence[str]) -> int:
    """List what a running gateway serves and what can be fetched."""
    parser = argparse.ArgumentParser(
        prog="quire models",
        description="List the models that are served now, that are in the cache, and that can be fetched.",
        epilog="examples:\n  quire models\n  quire models --json | jq .name",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_output_flags(parser)
    add_connection_flags(parser)
    args = parser.parse_args(argv)
    served = _served(args)
    listed = {model.name: model for model in list_models(cache_folder(os.environ))}
    table = Table("name", "served by", "context", "on disk", "about", box=None, pad_edge=False)
    for name in sorted({*served, *listed}):
        live, here = served.get(name), listed.get(name)
        if args.json:
            print_json(
                {
                    "name": name,
                    "num_workers": live.num_workers if live else 0,
                    "revision": live.revision if live else None,
                    "max_context_tokens": live.max_context_tokens if live else None,
                    "path": None if here is None or here.path is None else str(here.path),
                    "num_bytes": here.num_bytes if here else None,
                }
            )
            continue
        size = f"{here.num_bytes / 1e6:.0f} MB" if here else ""
        table.add_row(
            name,
            counted(live.num_workers, "worker") if live else "-",
            str(live.max_context_tokens) if live else "",
            size if here is None or here.path else f"no ({size} to fetch)",
            here.description if here else "",
        )
    if not args.json:
        console().print(table)
    return 0


def _served(args: argparse.Namespace) -> dict[str, Model]:
    with open_client(args) as client:
        try:
            return {model.name: model for model in client.models()}
        except ServeError as error:
            if error.reason != "UNAVAILABLE":
                raise FatalError(f"{error.message} ({error.reason})") from error
            console(stderr=True).print(f"no gateway answers at {target_of(args)}", style="dim")
            return {}
