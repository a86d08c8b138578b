"""Answers the schedulers' questions: where a prompt is cached, and why not more of it.

Reads the index, keeps the history that explains misses, counts hits. Knows no worker's stream, no slices.
"""

from kvmanager.core.miss_reason import AskedHistory, HistoryBounds, Missed, RemovalHistory, explain_miss
from kvmanager.core.prefix_index import PrefixIndex
from kvmanager.messages import Answer, Query
from kvmanager.metrics import IndexMetrics
from services.domain.ids import Namespace
from services.domain.miss_reason import MissReason


class Lookup:
    """Owns the history; the manager tells it what leaves the caches."""

    def __init__(self, index: PrefixIndex, metrics: IndexMetrics, bounds: HistoryBounds) -> None:
        self._index = index
        self._metrics = metrics
        self._asked = AskedHistory(bounds)
        self.removals = RemovalHistory(bounds)
        self.num_queries = 0
        self.num_hits = 0

    def match(self, query: Query) -> Answer:
        """Find the longest cached prefixes of a prompt and say why they are not longer."""
        index = self._index
        namespace = None if query.namespace is None else Namespace(query.namespace)
        matches = index.longest_prefixes(query.hashes, namespace)
        num_cached = max((match.num_blocks for match in matches), default=0)
        whole = num_cached == len(query.hashes)
        missed = Missed(
            tenant=query.tenant,
            hashes=query.hashes,
            num_cached=num_cached,
            own_salt=query.own_salt,
            held_elsewhere=not whole and index.is_held(query.hashes[num_cached], namespace),
        )
        reason = explain_miss(missed, self.removals, self._asked)
        self._asked.note(query.tenant, query.hashes)
        self._count(num_cached > 0, reason)
        return Answer(matches=matches, miss_reason=reason, num_cached=num_cached, index_version=index.version)

    def _count(self, hit: bool, reason: MissReason) -> None:
        self.num_queries += 1
        self.num_hits += hit
        self._metrics.queries.add()
        self._metrics.hits.add(int(hit))
        if reason is not MissReason.NONE:
            self._metrics.misses.add(1, reason.value)
