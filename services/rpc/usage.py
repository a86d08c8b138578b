"""Reports of usage between domain and messages, for both doors that give them."""

import datetime
from collections.abc import Iterable

from protos.types.v1 import types_pb2 as pb
from services.domain.usage import Split, UsageCounts, UsageReport, UsageRow, splits_of

_COUNTS = ("requests", "uncached_tokens", "cached_tokens", "output_tokens", "page_ms", "cost_nanos")


_SPLITS = {
    Split.TENANT: pb.USAGE_SPLIT_TENANT,
    Split.DAY: pb.USAGE_SPLIT_DAY,
    Split.MONTH: pb.USAGE_SPLIT_MONTH,
    Split.KEY: pb.USAGE_SPLIT_KEY,
    Split.MODEL: pb.USAGE_SPLIT_MODEL,
}
_SPLITS_BACK: dict[int, str] = {number: split for split, number in _SPLITS.items()}


def splits_to_pb(by: Iterable[Split]) -> list[pb.UsageSplit]:
    return [_SPLITS[one] for one in by]


def splits_from_pb(by: Iterable[int]) -> tuple[Split, ...]:
    """Read by what a report is to be split.

    Raises:
        InvalidField: An unknown number.
    """
    return splits_of(_SPLITS_BACK.get(one, f"number {one}") for one in by)


def report_to_pb(report: UsageReport) -> pb.UsageReport:
    return pb.UsageReport(
        first_day=report.first.isoformat(),
        last_day=report.last.isoformat(),
        currency=report.currency,
        rows=map(_row_to_pb, report.rows),
    )


def report_from_pb(report: pb.UsageReport) -> UsageReport:
    return UsageReport(
        first=datetime.date.fromisoformat(report.first_day),
        last=datetime.date.fromisoformat(report.last_day),
        currency=report.currency,
        rows=[_row_from_pb(row) for row in report.rows],
    )


def _row_to_pb(row: UsageRow) -> pb.UsageRow:
    message = pb.UsageRow(refusals=row.counts.refusals)
    for split, name in row.names.items():
        setattr(message, split, name)
    for count in _COUNTS:
        setattr(message, count, getattr(row.counts, count))
    return message


def _row_from_pb(message: pb.UsageRow) -> UsageRow:
    names = {split: value for split in Split if (value := getattr(message, split))}
    counts = {count: getattr(message, count) for count in _COUNTS}
    return UsageRow(names, UsageCounts(**counts, refusals=dict(message.refusals)))
