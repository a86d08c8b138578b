"""Errors of the use case in the words of the body that was sent: `sampling.top_p` is `top_p` here.

Knows names only. The use case speaks the public proto's language, whatever door a call came through.
"""

import dataclasses
from collections.abc import Mapping

from services.domain.errors import ServeError, UnknownModel

_SAMPLING = "sampling."


def in_words_of_body(error: ServeError, names: Mapping[str, str], *, prompt: int | None = None) -> ServeError:
    """Rename the field at fault, in the error's detail and at the start of its message.

    Args:
        names: Name in the use case -> name in the body, where they differ.
        prompt: Which of several prompts of one body the error is about.
    """
    field = error.detail.field
    if isinstance(error, UnknownModel):
        error.detail = dataclasses.replace(error.detail, field="model")
    elif field is not None:
        renamed = _renamed(field, names)
        if prompt is not None and renamed.startswith("prompt"):
            renamed = f"prompt[{prompt}]" + renamed.removeprefix("prompt")
        error.detail = dataclasses.replace(error.detail, field=renamed)
        if error.message.startswith(field):
            error.message = renamed + error.message.removeprefix(field)
    return error


def _renamed(field: str, names: Mapping[str, str]) -> str:
    field = field.removeprefix(_SAMPLING)
    for known in sorted(names, key=len, reverse=True):
        rest = field.removeprefix(known)
        if field.startswith(known) and (not rest or rest[0] in ".["):
            return names[known] + rest
    return field
