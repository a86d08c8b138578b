"""Says that a model cannot be quantised as asked.

Knows nothing of models or files: whoever raises it says which field or file it is.
"""


class QuantizeError(Exception):
    """One line: the field or file, what is wrong, what to do."""
