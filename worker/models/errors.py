"""Says that a model cannot be built from its config.

Knows nothing of files: the loader adds which one it was.
"""


class UnsupportedModel(Exception):
    """The config asks for maths we do not have, or lacks a number. One line: what, and what is possible."""
