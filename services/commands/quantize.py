"""`quire quantize`: make a smaller version of a model, with int8 or int4 weights."""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from services.artifacts.artifact import ModelArtifact, open_artifact
from services.artifacts.errors import ArtifactError
from services.artifacts.fetch import resolve
from services.chassis.fatal import ConfigError, FatalError
from services.commands.output import add_output_flags, console, print_json
from worker.quantize.calibration import our_calibration, read_calibration, tokenise
from worker.quantize.errors import QuantizeError
from worker.quantize.settings import GROUPS, WIDTHS, Method, QuantizeSettings

if TYPE_CHECKING:
    from worker.quantize.quantizer import LayerDone


def main(argv: Sequence[str]) -> int:
    """Quantise one model; Ctrl-C keeps what is done for the next run."""
    args = _parser().parse_args(argv)
    try:
        settings = QuantizeSettings(
            bits=WIDTHS[args.to],
            group=args.group,
            method=Method(args.method or _method(args.to)),
            has_static_activations=args.static_activations,
        )
    except QuantizeError as exc:
        raise ConfigError(str(exc)) from exc
    try:
        from worker.quantize.quantizer import quantize
    except ModuleNotFoundError as exc:
        raise FatalError(f"quire quantize needs torch: pip install 'quire[torch]' ({exc})") from exc
    started = time.monotonic()

    def on_layer(done: "LayerDone") -> None:
        if args.json:
            print_json(done, kind="layer")
        else:
            worst = max(done.errors, key=lambda name: done.errors[name])
            screen.print(
                f"layer {done.layer + 1:>3} of {done.num_layers}, {time.monotonic() - started:.0f} s,"
                f" error at most {done.errors[worst]:.2%} ({worst.rsplit('.', 1)[1]})"
            )

    screen = console(stderr=True)
    try:
        artifact = open_artifact(resolve(args.model))
        sequences = _sequences(artifact, settings, args.calibration)
        quantize(artifact, settings, sequences, args.output, on_layer)
    except (ArtifactError, QuantizeError) as exc:
        raise FatalError(str(exc)) from exc
    except OSError as exc:
        raise FatalError(
            f"{args.output}: cannot be written ({exc}); the same command goes on from here"
        ) from exc
    except KeyboardInterrupt:
        screen.print("stopped; the same command goes on from here")
        return 130
    if args.json:
        print_json({"path": str(args.output)}, kind="done")
    else:
        print(args.output)
    return 0


def _method(to: str) -> str:
    """Return the method for those who name none: at 8 bits the nearest code loses nothing that matters."""
    return Method.RTN if to == "int8" else Method.GPTQ


def _sequences(
    artifact: ModelArtifact, settings: QuantizeSettings, calibration: Path | None
) -> list[list[int]]:
    """Return token ids to calibrate with; none for a method that looks at weights alone."""
    if settings.has_static_activations and calibration is None:
        raise QuantizeError(
            "--static-activations: needs --calibration FILE; what fixed scales never saw they clip, so they"
            " must come from text like yours (without the flag scales are chosen as the model runs)"
        )
    if not settings.is_calibrated:
        if calibration is not None:
            raise QuantizeError(
                f"--calibration: --method {settings.method} does not look at text; leave it out"
            )
        return []
    text = our_calibration() if calibration is None else read_calibration(calibration)
    return tokenise(text, artifact)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="quire quantize",
        description="Write a version of a model with quantised weights: a model folder that this worker and"
        " other servers read (compressed-tensors, pack-quantized). A run that was stopped goes on when the"
        " same command is given again.",
        epilog="examples:\n  quire quantize smollm2-135m-instruct --to int4 -o ./smollm2-int4\n"
        "  quire quantize ./my-model --to int4 --method awq --group 64 --calibration texts.json -o ./int4\n"
        "  quire quality ./smollm2-int4 --baseline smollm2-135m-instruct",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", help="known name, model folder or GGUF file")
    parser.add_argument("--to", choices=[*WIDTHS], required=True, help="width of the codes")
    parser.add_argument(
        "--group", type=int, default=64, help=f"columns per scale: {', '.join(map(str, GROUPS))} [64]"
    )
    parser.add_argument(
        "--method", choices=[*Method], help="how codes are found [rtn for int8, gptq for int4]"
    )
    parser.add_argument(
        "--calibration", type=Path, help="JSON file with texts for awq and gptq [one that ships with this]"
    )
    parser.add_argument(
        "--static-activations",
        action="store_true",
        help="write a fixed scale for each matrix's 8-bit inputs too, for servers that want one",
    )
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder to make")
    add_output_flags(parser)
    return parser
