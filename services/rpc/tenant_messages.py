"""Tenants and limits between documents and messages: both have the same fields by the same names.

Checks nothing: what a message holds is a document to be read like any other.
"""

from collections.abc import Mapping
from typing import Any

from google.protobuf.message import Message

from protos.admin.v1 import admin_pb2 as pb
from protos.types.v1 import types_pb2

_BAND_NAME = "band_name"
"""Beside the enum `band`, for names that it does not have."""
_SHORTHAND = {"Rate": "per_minute", "Budget": "tokens"}
"""The field that a plain number stands for."""


def document_of(message: Message) -> dict[str, Any]:
    """Return what a message holds, absent fields left out."""
    document: dict[str, Any] = {}
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            is_message = field.message_type.fields_by_name["value"].message_type is not None
            document[field.name] = {
                name: document_of(one) if is_message else one for name, one in value.items()
            }
        elif field.is_repeated:
            document[field.name] = list(value)
        elif field.message_type is not None:
            document[field.name] = document_of(value)
        elif field.enum_type is not None:
            document[field.name] = band_name(value)
        elif field.name == _BAND_NAME:
            document["band"] = value
        else:
            document[field.name] = value
    return document


def tenant_to_pb(document: Mapping[str, Any]) -> pb.Tenant:
    """Return a valid tenant's document as its message."""
    message = pb.Tenant()
    _fill(message, document)
    return message


def limits_to_pb(document: Mapping[str, Any]) -> pb.Limits:
    """Return valid limits' document as their message."""
    message = pb.Limits()
    _fill(message, document)
    return message


def _fill(message: Message, document: Mapping[str, Any]) -> None:
    for name, value in document.items():
        field: Any = message.DESCRIPTOR.fields_by_name[name]
        kind = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            _fill_map(getattr(message, name), value)
        elif field.is_repeated:
            getattr(message, name).extend(value)
        elif kind is not None:
            inner = getattr(message, name)
            # An empty table is there, too.
            inner.SetInParent()
            _fill(inner, value if isinstance(value, Mapping) else {_SHORTHAND[kind.name]: value})
        elif field.enum_type is not None:
            setattr(message, _BAND_NAME, value)
            if f"BAND_{value.upper()}" in types_pb2.Band.DESCRIPTOR.values_by_name:
                setattr(message, name, f"BAND_{value.upper()}")
        else:
            setattr(message, name, value)


def _fill_map(target: Any, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if isinstance(value, Mapping):
            target[name].SetInParent()
            _fill(target[name], value)
        else:
            target[name] = value


def band_name(value: int) -> str:
    """Return the name of one of the enum's bands; another number gives a name that no band has."""
    known = value in types_pb2.Band.values()
    return types_pb2.Band.Name(value).removeprefix("BAND_").lower() if known else f"number-{value}"
