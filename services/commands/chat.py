"""`quire chat`: a conversation with history. Ctrl-C cancels the answer, not the program."""

import argparse
import contextlib
import sys
from collections.abc import Callable, Sequence

from services.client import Client, Delta, Message, ServeError
from services.commands.connection import (
    add_connection_flags,
    call_failed,
    choose_model,
    open_client,
    target_of,
)
from services.commands.generate import add_sampling_flags, options_of, show_queued
from services.commands.output import add_output_flags, console, harmless, print_json, write_text
from services.launcher.calls import receipt_lines

_EXAMPLES = """examples:
  quire chat
  quire chat --system "Answer in French." --temperature 0.7
  printf 'My name is Ada.\\nWhat is my name?\\n' | quire chat --json
"""
_HELP = """/reset          forget the conversation
/system TEXT    set the system message and forget the conversation
/history        show the conversation
/quit           leave (also Ctrl-D); Ctrl-C cancels an answer"""


def main(argv: Sequence[str]) -> int:
    args = _parser().parse_args(argv)
    with open_client(args) as client:
        try:
            chat = Chat(client, choose_model(args, client), args)
        except ServeError as error:
            raise call_failed(error, target_of(args)) from error
        chat.run(_read_line if sys.stdin.isatty() else _read_piped)
    return 0


class Chat:
    """One conversation: its messages so far and how to go on."""

    def __init__(self, client: Client, model: str, args: argparse.Namespace) -> None:
        self._client = client
        self._model = model
        self._args = args
        self._screen = console(stderr=True)
        self.messages: list[Message] = []
        self._begin(args.system)

    def run(self, read: Callable[[], str | None]) -> None:
        """Take turns until there is no more input."""
        if sys.stdin.isatty():
            self._screen.print(f"{self._model}; /help for help", style="dim", markup=False)
        while (line := read()) is not None:
            text = line.strip()
            if text == "/quit":
                return
            if text.startswith("/"):
                self._command(text)
            elif text:
                self._turn(text)

    def _begin(self, system: str | None) -> None:
        self.messages = [Message("system", system)] if system else []

    def _command(self, text: str) -> None:
        name, _, rest = text.partition(" ")
        if name == "/reset":
            self._begin(next((m.content for m in self.messages if m.role == "system"), None))
        elif name == "/system":
            self._begin(rest)
        elif name == "/history":
            for message in self.messages:
                self._screen.print(harmless(f"{message.role}: {message.content}"), markup=False)
        else:
            self._screen.print(_HELP, markup=False)

    def _turn(self, text: str) -> None:
        """Ask, and keep question and answer; a cancelled answer is kept as far as it came."""
        asked = [*self.messages, Message("user", text)]
        said: list[str] = []
        try:
            self._answer(asked, said)
        except KeyboardInterrupt:
            self._screen.print(" (cancelled)", style="dim")
        except ServeError as error:
            self._screen.print(
                f"\nerror: {call_failed(error, target_of(self._args))}", style="red", markup=False
            )
            if not said:
                return
        self.messages = [*asked, Message("assistant", "".join(said))] if said else self.messages

    def _answer(self, messages: list[Message], said: list[str]) -> None:
        options = options_of(self._args)
        with self._client.generate(
            messages, model=self._model, timeout_s=self._args.timeout, **options
        ) as stream:
            for event in stream:
                if self._args.json:
                    print_json(event, kind=type(event).__name__.lower())
                else:
                    show_queued(event)
                if isinstance(event, Delta) and event.choice == 0:
                    said.append(event.text)
                    if not self._args.json:
                        write_text(event.text)
        if not self._args.json:
            write_text("\n")
            if stream.receipt is not None and sys.stdin.isatty():
                self._screen.print(receipt_lines(stream.receipt)[1], style="dim", markup=False)


def _read_line() -> str | None:
    """Read one line with editing and history; Ctrl-C empties it, Ctrl-D ends."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (input() edits lines once it is loaded)
    while True:
        try:
            return input("> ")
        except EOFError:
            return None
        except KeyboardInterrupt:
            print()


def _read_piped() -> str | None:
    return sys.stdin.readline() or None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="quire chat",
        description="Talk to a model; the whole conversation goes with each turn.",
        epilog=f"{_EXAMPLES}\nwhile talking:\n{_HELP}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", help="[default: the only one served]")
    parser.add_argument("--system", metavar="TEXT", help="system message")
    add_sampling_flags(parser)
    add_output_flags(parser)
    add_connection_flags(parser)
    return parser
