"""`quire doctor`: what of this machine is fine, what is not, and what to do.

Knows how findings look; looks, and changes nothing.
"""

import argparse
from collections.abc import Sequence

from rich.text import Text

from services.commands.doctor_checks import Finding, Verdict, check
from services.commands.doctor_facts import look
from services.commands.output import add_output_flags, console, print_json

_MARKS = {Verdict.OK: ("✓", "green"), Verdict.LOOK: ("!", "yellow"), Verdict.MISSING: ("✗", "red")}


def main(argv: Sequence[str]) -> int:
    """Run the command; return 1 where something that is needed is missing."""
    parser = argparse.ArgumentParser(
        prog="quire doctor",
        description="Say what of this machine is fine, what is not, and what to do. Changes nothing.",
        epilog="exit code: 1 where `quire up` would not work, else 0\n\n"
        "examples:\n  quire doctor\n  quire doctor --json | jq 'select(.verdict != \"ok\")'",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--port-offset", type=int, default=0, help="that `quire up` will be given [default 0]"
    )
    add_output_flags(parser)
    args = parser.parse_args(argv)
    findings = check(look(args.port_offset))
    for finding in findings:
        if args.json:
            print_json(finding)
        else:
            console().print(show(finding))
    return int(any(finding.verdict is Verdict.MISSING for finding in findings))


def show(finding: Finding) -> Text:
    """Lay one finding out as a line."""
    mark, colour = _MARKS[finding.verdict]
    text = Text.assemble((f"{mark} ", colour), (f"{finding.topic:<13}", "bold"), finding.found)
    if finding.remedy is not None:
        text.append(f"  → {finding.remedy}", style=colour)
    return text
