"""Names the content of a model's files by a digest.

Knows bytes only. Files over `FULL_HASH_BYTES` in all are sampled: two models that differ only in bytes
outside the first and last MiB of each file (sizes and headers equal) would get the same name.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

FULL_HASH_BYTES = 2 << 30
_SAMPLE_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 22


def digest_files(paths: Sequence[Path]) -> str:
    """Return 16 hex digits of the SHA-256 over names, sizes and contents of `paths` in the given order."""
    digest = hashlib.sha256()
    sizes = [path.stat().st_size for path in paths]
    is_sampled = sum(sizes) > FULL_HASH_BYTES
    for path, size in zip(paths, sizes, strict=True):
        digest.update(f"{path.name}\0{size}\0".encode())
        with path.open("rb") as file:
            if is_sampled and size > 2 * _SAMPLE_BYTES:
                digest.update(file.read(_SAMPLE_BYTES))
                file.seek(-_SAMPLE_BYTES, 2)
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    return digest.hexdigest()[:16]
