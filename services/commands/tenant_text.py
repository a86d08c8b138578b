"""How tenants, keys and changes look as text.

Knows values; makes no call.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from rich.table import Table

from services.rpc.tenant_admin import ChangeView, KeyView, TenantView

_SIGNS = {(False, True): "+", (True, True): "~", (True, False): "-"}


def when(seconds: float | None) -> str:
    """Return a time of day in UTC."""
    return "-" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(seconds))


def change_lines(change: ChangeView) -> list[str]:
    """Return what a change does: `+` for new, `~` for changed with each field, `-` for gone."""
    before, after = change.before or {}, change.after or {}
    sign = _SIGNS[change.before is not None, change.after is not None]
    lines = [f"{sign} {change.kind} {change.id}"]
    if change.after is not None:
        for name in sorted(before.keys() | after.keys()):
            old, new = before.get(name), after.get(name)
            if old != new and name != "id":
                lines.append(f"    {name}: {_shown(old)} -> {_shown(new)}")
    return lines


def tenant_table(views: Sequence[TenantView]) -> Table:
    table = Table("tenant", "parent", "band", "weight", "limits", "", box=None, pad_edge=False)
    for one in views:
        document = one.document
        limits = {name: value for name, value in document.items() if name not in _OWN_COLUMNS}
        table.add_row(
            str(document["id"]),
            str(document.get("parent", "-")),
            str(document.get("band", "standard")),
            f"{document.get('weight', 1):g}",
            ", ".join(f"{name}={_short(value)}" for name, value in limits.items()),
            "(file)" if one.declared else "",
        )
    return table


_OWN_COLUMNS = ("id", "parent", "band", "weight", "name")


def key_table(keys: Sequence[KeyView]) -> Table:
    table = Table(
        *("key", "tenant", "label", "scopes", "created", "ends", "last used", "limits"),
        box=None,
        pad_edge=False,
    )
    for one in keys:
        table.add_row(
            one.id,
            one.tenant,
            one.label,
            ",".join(one.scopes),
            when(one.created_at or None),
            when(one.expires_at),
            when(one.last_used),
            ", ".join(f"{name}={_short(value)}" for name, value in one.limits.items()),
        )
    return table


def change_table(changes: Sequence[ChangeView]) -> Table:
    table = Table("when", "who", "what", box=None, pad_edge=False)
    for one in changes:
        table.add_row(when(one.at), one.who, "\n".join(change_lines(one)))
    return table


def _short(value: Any) -> str:
    """Return a rate or budget as its one number where it has no other."""
    if isinstance(value, Mapping) and len(value) == 1 and (set(value) & {"per_minute", "tokens"}):
        return str(next(iter(value.values())))
    return str(value) if isinstance(value, int | float | str) else _shown(value)


def _shown(value: Any) -> str:
    return "default" if value is None else orjson.dumps(value).decode()
