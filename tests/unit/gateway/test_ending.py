"""What is kept of a request comes back as it was."""

import dataclasses

from gateway.core.ending import Failed, decode_ending, encode_ending
from gateway.core.events import Receipt
from services.domain.errors import Code, ErrorDetail, WorkerLost
from services.domain.generation import Usage
from services.domain.ids import RequestId
from services.domain.miss_reason import MissReason

USAGE = Usage(prompt_tokens=3, cached_tokens=1, output_tokens=2)


def test_receipts_and_failures_survive_the_store() -> None:
    receipt = Receipt(
        request_id=RequestId("r"), usage=USAGE, queue_s=0.1, prefill_s=0.2, decode_s=0.3, ttft_s=0.4,
        tpot_s=0.5, preemptions=1, page_seconds=2.5, worker="w", attempts=2,
        miss_reason=MissReason.NEVER_SEEN, first_miss_token=16, computed_tokens=4, client_label="l",
        exact=True,
    )  # fmt: skip
    failed = Failed.of(RequestId("r"), WorkerLost("gone", ErrorDetail(metadata={"need": "3"})), USAGE)
    assert decode_ending(encode_ending(receipt)) == receipt
    assert decode_ending(encode_ending(failed)) == failed
    assert failed.code is Code.UNAVAILABLE
    assert decode_ending(encode_ending(dataclasses.replace(receipt, attempts=3))) != receipt
