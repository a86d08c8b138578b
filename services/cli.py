"""The `quire` command: finds the subcommand and hands the rest of the line to it.

Imports only what the chosen command needs, so that help is quick and nothing needs torch.
"""

import importlib
import importlib.metadata
import runpy
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from services.chassis.fatal import ConfigError, entry


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand: where its function lies, and a line of help."""

    where: str
    """`module:function`; the function takes the flags and returns the exit code."""
    about: str


COMMANDS = {
    "up": Command("services.launcher.up:main", "bring the whole suite up on this machine"),
    "generate": Command("services.commands.generate:main", "stream one answer"),
    "chat": Command("services.commands.chat:main", "talk to a model"),
    "tokenize": Command("services.commands.tokenize:main", "show how a model reads a text"),
    "models": Command("services.commands.models:models", "list models: served, here, to be fetched"),
    "doctor": Command("services.commands.doctor:main", "say what this machine lacks, and what to do"),
    "plan": Command("services.commands.plan:main", "say what a model takes in memory, and what fits"),
    "quality": Command("services.commands.quality:main", "measure what a version lost against float32"),
    "quantize": Command("services.commands.quantize:main", "make a smaller version of a model"),
    "pull": Command("services.commands.models:pull", "fetch a model"),
    "status": Command("services.commands.status:main", "processes, queue, credits, pages, hit rate"),
    "top": Command("services.commands.top:main", "tenants by tokens: queue, pages, share against weight"),
    "tenant": Command("services.commands.tenant:main", "who may use how much: tenants, keys, changes"),
    "certs": Command("services.commands.certs:main", "make a local authority and certificates for TLS"),
    "drain": Command("services.commands.drain:main", "let one worker finish and take nothing new"),
    "release": Command("services.commands.release:main", "serve a quarantined prompt again"),
    "first-start": Command("services.launcher.first_start:main", "write a deployment's first configuration"),
}
SERVICES = {
    "gateway": "the public doors, gRPC and HTTP",
    "scheduler": "the queue and placement",
    "kvmanager": "KV policy and the prefix index",
    "worker": "one model on one device",
}
_EXAMPLES = """examples:
  quire up                                 everything, with the built-in model
  quire generate --chat "Why is the sky blue?"
  quire status --watch
  quire worker --help                      one service by itself
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    return entry(lambda: _run(words))


def _run(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(_help())
        return 0 if words else 2
    name, rest = words[0], words[1:]
    if name in ("-V", "--version"):
        print(f"quire {importlib.metadata.version('quire')}")
        return 0
    if name in SERVICES:
        sys.argv = [f"quire {name}", *rest]
        runpy.run_module(name, run_name="__main__", alter_sys=False)
        return 0
    if name not in COMMANDS:
        raise ConfigError(f"unknown command {name}{_nearest(name)} (quire --help lists them)")
    module, _, function = COMMANDS[name].where.partition(":")
    code: int = getattr(importlib.import_module(module), function)(rest)
    return code


def _help() -> str:
    commands = "\n".join(f"  {name:<11} {command.about}" for name, command in COMMANDS.items())
    services = "\n".join(f"  {name:<11} {about}" for name, about in SERVICES.items())
    return (
        "usage: quire COMMAND [flags]        (each has --help)\n\n"
        "Serve large language models to many teams at once.\n\n"
        f"commands:\n{commands}\n\none service by itself:\n{services}\n\n{_EXAMPLES}"
    )


def _nearest(name: str) -> str:
    import difflib

    close = difflib.get_close_matches(name, [*COMMANDS, *SERVICES], n=1)
    return f"; did you mean {close[0]}?" if close else ""


if __name__ == "__main__":
    sys.exit(main())
