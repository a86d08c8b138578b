"""Settlements that the quota store does not have yet, in files that outlive the gateway.

One file for each boot, a line for each batch; a lock says whose gateway still lives, so that another one
settles only what was left behind. Written without waiting for the disk: it outlives the process, not a power
cut. Knows files; when a batch is written and what is settled is not known here.
"""

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Any

import orjson
import structlog

from gateway.stores.quota import Batch, Settlement
from services.domain.ids import RequestId, TenantId
from services.domain.limits import Account, Limits, Scope, ScopeKind

SUFFIX = ".settlements"

_log = structlog.get_logger()


class JournalFile:
    """Batches of one boot, locked for as long as this object is open.

    Args:
        descriptor: Open for reading and appending, and locked.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._read_to = 0

    def append(self, batch: Batch) -> None:
        """Add a batch.

        Raises:
            OSError: It cannot be written.
        """
        line = orjson.dumps([batch.boot, batch.number, [_plain(one) for one in batch.settlements]]) + b"\n"
        end = os.lseek(self._descriptor, 0, os.SEEK_END)
        if os.write(self._descriptor, line) < len(line):
            os.ftruncate(self._descriptor, end)
            raise OSError(f"{self.path} has no room")

    def batches(self, after: int, most: int) -> list[Batch]:
        """Return the next batches, up to `most`, whose numbers are above `after`; each is returned once."""
        found: list[Batch] = []
        with open(os.dup(self._descriptor), "rb") as file:
            file.seek(self._read_to)
            while len(found) < most and (line := file.readline()):
                batch = self._batch_of(line)
                if batch is not None and batch.number > after:
                    found.append(batch)
            self._read_to = file.tell()
        return found

    def clear(self) -> None:
        """Forget all: the store has it."""
        os.ftruncate(self._descriptor, 0)
        self._read_to = 0

    def remove(self) -> None:
        """Delete the file, which nobody needs any more."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
        os.close(self._descriptor)

    def close(self) -> None:
        """Leave the file to whoever looks for it next."""
        os.close(self._descriptor)

    def _batch_of(self, line: bytes) -> Batch | None:
        try:
            boot, number, settlements = orjson.loads(line)
            return Batch(boot, number, tuple(map(_settlement, settlements)))
        except (ValueError, KeyError, TypeError) as error:
            # Cut short where its gateway died while it wrote.
            _log.error("journal_line_unreadable", file=str(self.path), error=type(error).__name__)
            return None


class Journal:
    """The folder of such files.

    Args:
        boot: Names this gateway's own one.

    Raises:
        OSError: The folder cannot be made or written.
    """

    def __init__(self, folder: Path, boot: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        draft = folder / f".{boot}"
        descriptor = os.open(draft, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        # Under its name only once it is locked: before, others would take it for one that was left behind.
        self.own = JournalFile(draft.rename(folder / f"{boot}{SUFFIX}"), descriptor)

    def left_behind(self) -> list[JournalFile]:
        """Return, locked, the files of gateways that live no more."""
        found = (self._locked(path) for path in sorted(self._folder.glob(f"*{SUFFIX}")))
        return [one for one in found if one is not None]

    def _locked(self, path: Path) -> JournalFile | None:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
        except OSError:
            return None  # Somebody settled it meanwhile, or it belongs to another user.
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.stat(path).st_ino == os.fstat(descriptor).st_ino:
                return JournalFile(path, descriptor)
        except OSError:
            pass  # Its gateway lives, or somebody else was quicker.
        os.close(descriptor)
        return None


def _plain(one: Settlement) -> dict[str, Any]:
    """Return what the store is told of a settlement; limits have no part in it."""
    account = one.account
    return {
        "id": one.id,
        "tenant": account.tenant,
        "organisation": account.organisation,
        "scopes": [[scope.kind, scope.id, scope.limits.utc_offset_minutes] for scope in account.scopes],
        "key_id": account.key_id,
        "model": account.model,
        "prompt_tokens": one.prompt_tokens,
        "output_tokens": one.output_tokens,
        "cached_tokens": one.cached_tokens,
        "page_ms": one.page_ms,
        "cost_nanos": one.cost_nanos,
        "ending": one.ending.decode("latin-1"),
        "idempotency_key": one.idempotency_key,
    }


def _settlement(plain: dict[str, Any]) -> Settlement:
    return Settlement(
        id=RequestId(plain["id"]),
        account=Account(
            tenant=TenantId(plain["tenant"]),
            organisation=TenantId(plain["organisation"]),
            scopes=tuple(
                Scope(kind=ScopeKind(kind), id=name, limits=Limits(utc_offset_minutes=zone))
                for kind, name, zone in plain["scopes"]
            ),
            key_id=plain["key_id"],
            model=plain["model"],
        ),
        prompt_tokens=plain["prompt_tokens"],
        output_tokens=plain["output_tokens"],
        cached_tokens=plain["cached_tokens"],
        page_ms=plain["page_ms"],
        cost_nanos=plain["cost_nanos"],
        ending=plain["ending"].encode("latin-1"),
        idempotency_key=plain["idempotency_key"],
    )
