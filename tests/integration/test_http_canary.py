"""A fault of ours while a caller's words are in hand: neither log nor answer repeats them."""

import io
import logging
from collections.abc import AsyncIterator, Iterator

import pytest
import structlog

from services.chassis.logging import configure_logging
from tests.fakes.byte_tokenizer import ByteTokenizer
from tests.fakes.gateway_rig import generate
from tests.fakes.http_rig import HttpRig, http_rig

CANARY = "canary7q"


@pytest.fixture
def written() -> Iterator[io.BytesIO]:
    """What a production process would write, of this test only."""
    before, handlers = structlog.get_config(), logging.getLogger().handlers[:]
    configure_logging("gateway")
    lines = io.BytesIO()
    structlog.configure(
        logger_factory=structlog.BytesLoggerFactory(file=lines), cache_logger_on_first_use=False
    )
    yield lines
    structlog.configure(**before)
    logging.getLogger().handlers[:] = handlers


@pytest.fixture
async def http(written: io.BytesIO) -> AsyncIterator[HttpRig]:
    async with http_rig() as started:
        yield started


@pytest.mark.failure("B180")
@pytest.mark.failure("B182")
async def test_a_fault_in_tokenising_tells_nobody_the_prompt(
    http: HttpRig, written: io.BytesIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode_text(self: ByteTokenizer, text: str, **options: object) -> list[int]:
        raise ValueError(f"cannot encode {text!r}")

    monkeypatch.setattr(ByteTokenizer, "encode_text", encode_text)
    answers = [await http.post(prompt=CANARY), await http.post(prompt=CANARY, stream=True)]
    with pytest.raises(Exception, match="correlation id") as refused:
        await generate(http.rig, prompt=CANARY)
    await http.rig.settled()
    log = written.getvalue().decode()
    assert log.count('"event":"call_failed"') == 3
    assert log.count('"event":"request_finished"') == 3
    assert CANARY not in log
    assert CANARY not in str(refused.value)
    for answer in answers:
        assert answer.status_code == 500
        assert CANARY not in answer.text
        assert answer.json()["error"]["message"].split()[-1] in log
    assert CANARY.encode() not in http.rig.metrics.render()
