"""The admin key of a suite that `quire up` runs, where `quire tenant` of the same user finds it.

One file for each admin port, readable by its owner only. Knows no other way to a key.
"""

import os
from pathlib import Path

from services.chassis.fatal import FatalError


def admin_key_file(cache: Path, admin_port: int) -> Path:
    """Return where the key of the suite with this admin port lies."""
    return cache / "run" / f"admin-{admin_port}.key"


def keep_admin_key(path: Path, key: str) -> None:
    """Write the key of a run in place of an earlier one's.

    Raises:
        FatalError: It cannot be written.
    """
    draft = path.with_suffix(f".{os.getpid()}")
    try:
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(key)
        draft.replace(path)
    except OSError as exc:
        raise FatalError(f"{path} cannot be written ({exc.strerror})") from exc
