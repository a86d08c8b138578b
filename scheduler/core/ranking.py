"""Tells workers how far their tenants are over their shares, for them to choose victims by.

Knows the policy's accounts and when a worker was told last; knows no request.
"""

from scheduler.core.credits import WorkerCredits
from scheduler.core.outputs import Ranks
from scheduler.core.policy import QueuePolicy


def ranks_for(worker: WorkerCredits, policy: QueuePolicy, now: float, every_s: float) -> list[Ranks]:
    """Return what a worker hears after a report: at most once in `every_s`, and nothing about nobody."""
    if now < worker.ranks_due:
        return []
    over_share = worker.over_share = policy.over_share(worker.hello.worker)
    if not over_share:
        return []
    worker.ranks_due = now + every_s
    worker.ranks_version += 1
    return [Ranks(worker=worker.hello.worker, version=worker.ranks_version, over_share=over_share)]
