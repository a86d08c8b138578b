"""Tenants as people write them: YAML files, and FIELD=VALUE on a command line.

Knows YAML; what may be is checked by the one reader of documents.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from services.chassis.fatal import ConfigError
from services.commands.yaml_text import from_yaml
from services.domain.tenant_document import FIELDS, tenant_to_document, tenants_from_documents


def with_fields(document: Mapping[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """Return `document` with FIELD=VALUE set; VALUE is YAML, without one the field is taken out.

    Raises:
        ConfigError: Not of that form.
    """
    changed: dict[str, Any] = {**document}
    for text in assignments:
        path, separator, value = text.partition("=")
        if not separator or not path:
            raise ConfigError(f"{text!r} must be FIELD=VALUE; fields are {', '.join(FIELDS)}")
        *outer, name = path.split(".")
        target = changed
        for part in outer:
            known = target.get(part)
            target[part] = target = {**known} if isinstance(known, Mapping) else {}
        if value:
            target[name] = from_yaml(value, f"the value of {path} is no YAML")
        else:
            target.pop(name, None)
    return changed


def read_tenants(file: str) -> list[Any]:
    """Read the tenants of a declaration.

    Raises:
        ConfigError: It cannot be read, or is no YAML with a list `tenants`.
        InvalidField: A tenant breaks a rule.
    """
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"cannot read {file}: {exc}") from exc
    document = from_yaml(text, f"cannot read {file}")
    if not isinstance(document, dict) or set(document) != {"tenants"}:
        raise ConfigError(f"{file}: must be a table with one list, `tenants`")
    return [tenant_to_document(tenant) for tenant in tenants_from_documents(document["tenants"])]


def to_yaml(value: Any) -> str:
    """Return plain values as YAML, in their own order."""
    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
    return text
