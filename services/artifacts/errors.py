"""Says that a model on disk cannot be used.

Knows nothing of requests: an error that a caller of the service may see is a `ServeError` of services.domain.
"""


class ArtifactError(Exception):
    """A model file is missing, damaged or of a kind we do not read. One line: what is wrong, what to do."""
