"""Which build this is, as every Hello tells its peer and `quire --version` tells people."""

from importlib.metadata import PackageNotFoundError, version


def _version() -> str:
    try:
        return version("quire")
    except PackageNotFoundError:
        return "source"


BUILD = f"quire/{_version()}"
