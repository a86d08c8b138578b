"""`quire tokenize`: show how a model reads a text."""

import argparse
import sys
from collections.abc import Sequence

from services.client import Message, ServeError
from services.commands.connection import (
    add_connection_flags,
    call_failed,
    choose_model,
    open_client,
    target_of,
)
from services.commands.output import add_output_flags, print_json


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="quire tokenize",
        description="Turn a text into token ids, exactly as generate would.",
        epilog='examples:\n  quire tokenize "Hello, world"\n  quire tokenize --chat --json "Hello"',
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("text", help="text, or - to read it from stdin")
    parser.add_argument("--model", help="[default: the only one served]")
    parser.add_argument(
        "--chat", action="store_true", help="as a user's message, through the model's template"
    )
    add_output_flags(parser)
    add_connection_flags(parser)
    args = parser.parse_args(argv)
    text = sys.stdin.read() if args.text == "-" else args.text
    with open_client(args) as client:
        try:
            tokens = client.tokenize(
                [Message("user", text)] if args.chat else text,
                model=choose_model(args, client),
                return_bytes=True,
            )
        except ServeError as error:
            raise call_failed(error, target_of(args)) from error
    if args.json:
        print_json(tokens)
        return 0
    for token_id, piece in zip(tokens.ids, tokens.token_bytes, strict=True):
        print(f"{token_id:>8}  {piece.decode('utf-8', 'backslashreplace')!r}")
    print(f"{len(tokens.ids)} tokens of at most {tokens.max_context_tokens}", file=sys.stderr)
    return 0
