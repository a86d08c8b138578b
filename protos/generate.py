"""Generate Python code from the `.proto` files, beside them: `python -m protos.generate [--check]`.

Runs from the repository root, so that imports inside generated code need no repair. `--check` generates
into a temporary folder and fails when a committed file differs.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent


def generate(out: Path) -> list[Path]:
    """Write all generated files below `out` and return their paths relative to it."""
    protos = sorted(p.relative_to(ROOT) for p in (ROOT / "protos").rglob("*.proto"))
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    arguments = ["protoc", f"-I{ROOT}", f"-I{well_known}"]
    arguments += [f"--python_out={out}", f"--pyi_out={out}", f"--grpc_python_out={out}"]
    status = protoc.main([*arguments, *map(str, protos)])
    if status != 0:
        raise SystemExit(f"protoc failed with status {status}")
    written = sorted(p.relative_to(out) for p in (out / "protos").rglob("*_pb2*"))
    empty = {p for p in written if p.name.endswith("_pb2_grpc.py") and "class " not in (out / p).read_text()}
    for path in empty:
        (out / path).unlink()
    return [p for p in written if p not in empty and p.suffix in (".py", ".pyi")]


def stale_files() -> list[str]:
    """Return the committed files that differ from what the `.proto` files give now."""
    with tempfile.TemporaryDirectory() as folder:
        fresh = generate(Path(folder))
        stale = []
        for path in fresh:
            committed = ROOT / path
            if not committed.exists() or committed.read_bytes() != (Path(folder) / path).read_bytes():
                stale.append(str(path))
    known = {
        p.relative_to(ROOT) for p in (ROOT / "protos").rglob("*_pb2*.py*") if "__pycache__" not in p.parts
    }
    return sorted(stale + [str(p) for p in known - set(fresh)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail when a committed file is not fresh")
    if not parser.parse_args().check:
        generate(ROOT)
        return
    if stale := stale_files():
        sys.exit("not fresh, run python -m protos.generate:\n  " + "\n  ".join(stale))


if __name__ == "__main__":
    main()
