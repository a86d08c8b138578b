"""Why a prompt's prefix was not (fully) in the cache of the worker that served it."""

from enum import StrEnum


class MissReason(StrEnum):
    """Why the prompt was not wholly served from the cache."""

    NONE = "none"
    NEVER_SEEN = "never_seen"
    EVICTED_FOR_SPACE = "evicted_for_space"
    EVICTED_BY_POLICY = "evicted_by_policy"
    WORKER_GONE = "worker_gone"
    ON_ANOTHER_WORKER = "on_another_worker"
    OWN_SALT = "own_salt"
    OPT_OUT = "opt_out"
    FIRST_DIFFERENCE = "first_difference"
    UNKNOWN = "unknown"
    IN_FLIGHT = "in_flight"
    """An earlier request asked for it a moment ago: it is being computed and in no cache yet."""
