"""`quire generate`: stream one answer to the terminal or a pipe."""

import argparse
import sys
from collections.abc import Sequence
from typing import cast

from services.client import (
    Completion,
    Delta,
    Echo,
    Event,
    EventStream,
    Input,
    Message,
    Options,
    Queued,
    ServeError,
)
from services.commands.connection import (
    add_connection_flags,
    call_failed,
    choose_model,
    open_client,
    target_of,
)
from services.commands.output import add_output_flags, console, print_json, write_text
from services.launcher.calls import indent, receipt_lines

_EXAMPLES = """examples:
  quire generate "Once upon a time"
  quire generate --chat --max-tokens 64 "Why is the sky blue?"
  echo "Some text" | quire generate -
  quire generate --json --logprobs 3 "2 + 2 =" | jq .
  quire generate --json --echo --logprobs 0 --max-tokens 0 "scored text" | jq 'select(.event == "echo")'
"""
_NUMBERS = {
    "temperature": (float, "0 (greedy) to 2"),
    "top_p": (float, "above 0, up to 1"),
    "top_k": (int, "0 is off"),
    "min_p": (float, "0 to 1"),
    "repetition_penalty": (float, "above 0, up to 10"),
    "presence_penalty": (float, "-2 to 2"),
    "frequency_penalty": (float, "-2 to 2"),
    "seed": (int, "the same seed draws the same tokens"),
    "logprobs": (int, "0 to 20 alternatives"),
    "n": (int, "choices, 1 to 16"),
}


def main(argv: Sequence[str]) -> int:
    args = _parser().parse_args(argv)
    with open_client(args) as client:
        try:
            prompt: Input = sys.stdin.read() if args.prompt == "-" else args.prompt
            if args.chat or args.system:
                system = [Message("system", args.system)] if args.system else []
                prompt = [*system, Message("user", cast(str, prompt))]
            options = options_of(args)
            options["echo"] = args.echo or None
            with client.generate(
                prompt, model=choose_model(args, client), timeout_s=args.timeout, **options
            ) as stream:
                return _show(stream, args)
        except ServeError as error:
            raise call_failed(error, target_of(args)) from error
        except KeyboardInterrupt:
            return 130


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how it is drawn (absent: the model's own defaults)")
    for name, (kind, text) in _NUMBERS.items():
        flag = f"--{name.replace('_', '-')}"
        group.add_argument(flag, type=kind, metavar=kind.__name__.upper(), help=text)
    group.add_argument("--max-tokens", type=int, metavar="INT", help="most output tokens per choice")
    group.add_argument("--min-tokens", type=int, metavar="INT", help="no end before that many")
    group.add_argument("--stop", action="append", metavar="TEXT", help="end at this text (may be repeated)")
    group.add_argument("--ignore-eos", action="store_true", help="go on past the model's own end")
    group.add_argument("--band", metavar="NAME", help="priority, such as batch")
    group.add_argument("--no-cache", action="store_true", help="neither read nor fill the prefix cache")
    group.add_argument("--timeout", type=float, metavar="SECONDS", help="deadline of the call")


def options_of(args: argparse.Namespace) -> Options:
    """Return what the flags ask for, as the client takes it."""
    options: dict[str, object] = {name: getattr(args, name) for name in _NUMBERS}
    options |= {
        "max_output_tokens": args.max_tokens,
        "min_output_tokens": args.min_tokens,
        "stop": args.stop,
        "ignore_eos": args.ignore_eos or None,
        "band": args.band,
        "cache_opt_out": args.no_cache or None,
    }
    return cast(Options, options)


def show_queued(event: Event) -> None:
    """Tell on stderr that the request waits."""
    if isinstance(event, Queued):
        wait = "" if event.expected_wait_s is None else f", about {event.expected_wait_s:.1f} s"
        console(stderr=True).print(f"waiting: {event.position} before this one{wait}", style="dim")


def _show(stream: EventStream, args: argparse.Namespace) -> int:
    several = args.n is not None and args.n > 1
    for event in stream:
        if args.json:
            print_json(event, kind=type(event).__name__.lower())
            continue
        show_queued(event)
        if isinstance(event, Echo) or (isinstance(event, Delta) and not several):
            write_text(event.text)
    if not args.json:
        _show_end(stream.completion(), several)
    return 0


def _show_end(completion: Completion, several: bool) -> None:
    if several:
        if completion.echo is not None:
            write_text("\n")
        for index, choice in enumerate(completion.choices):
            write_text(f"--- choice {index} ({choice.reason.value})\n{choice.text}\n")
    elif not completion.text.endswith("\n"):
        write_text("\n")
    receipt = indent(receipt_lines(completion.receipt))
    console(stderr=True).print(receipt, style="dim", markup=False)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="quire generate",
        description="Stream one answer. The receipt goes to stderr.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("prompt", help="text, or - to read it from stdin")
    parser.add_argument("--model", help="[default: the only one served]")
    parser.add_argument("--chat", action="store_true", help="send the prompt as a user's message of a chat")
    parser.add_argument("--system", metavar="TEXT", help="system message; implies --chat")
    parser.add_argument(
        "--echo", action="store_true", help="give the prompt back first; with --logprobs, scored (see --json)"
    )
    add_sampling_flags(parser)
    add_output_flags(parser)
    add_connection_flags(parser)
    return parser
