"""Reads what a store did from the outside: the lines of Valkey's MONITOR become events.

MONITOR shows every command in the order in which the store ran it, those inside scripts too. So the log needs
nothing of the product and nobody who may die, and says what the scripts did (written reservations and leases,
tombstones, audit entries), not what they answered; times are those that the scripts themselves wrote. Pure:
reads lines, opens nothing. Knows the layout of `gateway/stores/quota.lua` and `tenants.lua`; a call that did
nothing (a reservation or settlement repeated) is no event.
"""

import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence

import orjson

from bench.tenants.audit_events import Asked, Bounds, Edited, Event, Expired, Renewed, Settled
from gateway.core.keys import key_from_document
from gateway.stores.tenants import AUDIT_KEY
from services.domain.ids import TenantId
from services.domain.tenant_document import tenant_from_document

_ARGUMENT = re.compile(rb'"((?:[^"\\]|\\.)*)"')
_BOUNDS = struct.Struct("<12d")
_SETTLE_ITEM = 11
_FROM_SCRIPT = b" lua] "
_PREFIX = b"quire:quota:"
# Most of what a script does says nothing here: reading, saving counters, expiries.
_TELLING = (b'"HSET" "quire:quota:', b'"ZADD" "quire:quota:', b'"ZRANGEBYSCORE" "quire:quota:', b'"XADD"')

Arguments = list[bytes]


def events(lines: Iterable[bytes]) -> Iterator[Event]:
    """Yield what the store did, in its order."""
    call: Arguments = []
    effects: list[Arguments] = []
    for line in lines:
        if _FROM_SCRIPT in line:
            if any(one in line for one in _TELLING):
                effects.append(_arguments(line))
            continue
        yield from _done(call, effects)
        call, effects = (_arguments(line) if b'"EVAL' in line else []), []
    yield from _done(call, effects)


def _arguments(line: bytes) -> Arguments:
    """Return a line's arguments; MONITOR escapes them as C does."""
    found = _ARGUMENT.findall(line)
    return [one.decode("unicode_escape").encode("latin-1") if b"\\" in one else one for one in found]


def _done(call: Arguments, effects: Sequence[Arguments]) -> Iterator[Event]:
    """Yield what one call of a script did."""
    if not effects:
        return
    edits = [one for one in effects if one[0] == b"XADD" and one[1] == AUDIT_KEY.encode()]
    if edits:
        yield from map(_edited, edits)
    elif call[3].startswith(_PREFIX):
        num_keys = int(call[2])
        keys, arguments = call[3 : 3 + num_keys], call[3 + num_keys :]
        now = _now(effects)
        written = [one for one in effects if one[0] == b"HSET" and one[1].endswith(b":reservations")]
        if now is not None:
            yield from (Expired(at_ms=now, id=one[2].decode()) for one in written if one[3] == b"e")
        read = _READERS.get(arguments[0])
        if read is not None:
            yield from read(keys, arguments, effects, now)


def _now(effects: Sequence[Arguments]) -> int | None:
    """Return the script's own time: up to it leases were looked for that had ended."""
    for one in effects:
        if one[0] == b"ZRANGEBYSCORE" and one[1].endswith(b":leases"):
            return int(one[3])
    return None


def _leases(effects: Sequence[Arguments]) -> dict[bytes, int]:
    """Return the leases that were written and their ends."""
    return {
        one[3]: int(float(one[2])) for one in effects if one[0] == b"ZADD" and one[1].endswith(b":leases")
    }


def _asked(
    keys: Sequence[bytes], arguments: Sequence[bytes], effects: Sequence[Arguments], now: int | None
) -> Iterator[Event]:
    name, n, prompt, output, lease, _, split, scopes, *packed = arguments[1:]
    usage = keys[5] + b":"
    admitted = name in _leases(effects)
    refused = any(one[0] == b"HSET" and one[1].startswith(usage) for one in effects)
    if not admitted and not refused:
        return  # It was there before.
    assert now is not None, "a reservation looks for ended leases first"
    names = scopes.split(b"\0")[:-1:2]
    key_id, _, model = split.partition(b"\0")
    yield Asked(
        at_ms=now,
        id=name.decode(),
        admitted=admitted,
        tenant=TenantId(keys[5].rpartition(b":usage")[0].rpartition(b"}:")[2].decode()),
        key_id=key_id.decode(),
        model=model.decode(),
        num_choices=int(n),
        prompt_tokens=int(prompt),
        output_tokens=int(output),
        lease_ms=int(lease),
        bounds={
            scope.decode(): _bounds(_BOUNDS.unpack(numbers))
            for scope, numbers in zip(names, packed, strict=True)
        },
    )


def _bounds(numbers: Sequence[float]) -> Bounds:
    return Bounds(
        zone=numbers[0],
        concurrency=numbers[1],
        capacity=tuple(numbers[2:10:2]),
        per_minute=tuple(numbers[3:10:2]),
        budgets=tuple(numbers[10:]),
    )


def _settled(
    keys: Sequence[bytes], arguments: Sequence[bytes], effects: Sequence[Arguments], now: int | None
) -> Iterator[Event]:
    done = {one[2] for one in effects if one[0] == b"HSET" and one[-1] == b"s"}
    for start in range(2, len(arguments), _SETTLE_ITEM):
        name, prompt, output = arguments[start : start + 3]
        if name in done:
            assert now is not None, "a settlement looks for ended leases first"
            done.remove(name)
            yield Settled(at_ms=now, id=name.decode(), prompt_tokens=int(prompt), output_tokens=int(output))


def _renewed(
    keys: Sequence[bytes], arguments: Sequence[bytes], effects: Sequence[Arguments], now: int | None
) -> Iterator[Event]:
    lease_ms = int(arguments[1])
    for name, until in _leases(effects).items():
        yield Renewed(at_ms=until - lease_ms, id=name.decode(), lease_ms=lease_ms)


_Reader = Callable[[Sequence[bytes], Sequence[bytes], Sequence[Arguments], int | None], Iterator[Event]]
_READERS: dict[bytes, _Reader] = {b"reserve": _asked, b"settle": _settled, b"renew": _renewed}


def _edited(entry: Arguments) -> Edited:
    fields = dict(zip(entry[3::2], entry[4::2], strict=True))
    name, after = fields[b"id"].decode(), fields[b"after"]
    document = orjson.loads(after) if after else None
    at_ms = int(fields[b"at"])
    if fields[b"kind"] == b"tenant":
        tenant = None if document is None else tenant_from_document(document)
        return Edited(at_ms=at_ms, tenants={TenantId(name): tenant})
    return Edited(at_ms=at_ms, keys={name: None if document is None else key_from_document("", document)})
