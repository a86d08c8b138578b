"""What the kvmanager counts about its index.

Knows names and meanings; the manager says when.
"""

from services.chassis.metrics import Metrics


class IndexMetrics:
    """Counters and levels of one kvmanager."""

    def __init__(self, metrics: Metrics) -> None:
        self.blocks = metrics.gauge("quire_prefix_index_blocks", "Blocks known by worker", ["worker"])
        self.staleness = metrics.gauge(
            "quire_prefix_index_staleness_seconds",
            "Seconds since all of a worker's changes were last known",
            ["worker"],
        )
        self.queries = metrics.counter("quire_prefix_index_queries_total", "Prompts looked up")
        self.hits = metrics.counter("quire_prefix_index_hits_total", "Prompts with at least one block cached")
        self.misses = metrics.counter(
            "quire_prefix_index_misses_total", "Prompts not wholly cached, by reason", ["reason"]
        )
        self.gaps = metrics.counter("quire_prefix_index_gaps_total", "Gaps in workers' numbered changes")
        self.snapshots = metrics.counter("quire_prefix_index_snapshots_total", "Snapshots taken in")
        self.ignored = metrics.counter(
            "quire_prefix_index_ignored_total", "Messages of changes that were old or could not be read"
        )
        self.copy_behind = metrics.gauge(
            "quire_prefix_index_copy_behind_seconds", "Age of the oldest change not yet in the Redis copy"
        )
        self.slice_pages = metrics.gauge(
            "quire_kv_slice_pages", "Pages in force for capped tenants over all workers", ["tenant"]
        )
