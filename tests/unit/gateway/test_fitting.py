"""Which model serves a request whose band has degraded, and what it is told of it."""

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from gateway.fitting import Fitted, fit
from gateway.models import ModelBook
from gateway.prompts import PromptEncoder, Salts
from services.domain.capacity import Capacity
from services.domain.degradation import Degradation, Degraded, Step
from services.domain.errors import PromptTooLong
from services.domain.generation import Band
from services.domain.ids import TenantId
from services.domain.tenant import Tenant
from services.domain.tenant_book import TenantBook
from services.rpc.gateway_values import ModelState
from tests.fakes.byte_tokenizer import byte_model
from tests.unit.gateway.builders import a_request, a_tenant

POLICY = Degradation(cap_output_tokens=5, smaller_models={"large": "small"})
CONTEXT = {"large": 512, "small": 128}


def a_state(name: str, *, steps: dict[Band, Step]) -> ModelState:
    capacity = Capacity(max_context_tokens=CONTEXT[name], total_pages=64, page_size=16, max_sequences=16)
    return ModelState(name=name, revision="r1", num_workers=1, capacity=capacity, steps=steps)


@pytest.fixture
async def encoder() -> AsyncIterator[PromptEncoder]:
    with ThreadPoolExecutor(1) as executor:
        yield PromptEncoder(executor, lambda seconds: None)


async def served(
    encoder: PromptEncoder,
    step: Step,
    *,
    tenant: Tenant | None = None,
    model: str = "large",
    prompt: str = "hello",
    is_small_up: bool = True,
) -> Fitted:
    states = {"large": a_state("large", steps={Band.STANDARD: step})}
    if is_small_up:
        states["small"] = a_state("small", steps={})
    book = ModelBook([byte_model("large"), byte_model("small")], lambda: states)
    request = a_request(model=model, prompt=prompt, max_output_tokens=50)
    return await fit(
        request,
        tenant or a_tenant(degradation=POLICY),
        Salts(blocks=b"salt", tenant=b"salt"),
        book,
        encoder,
    )


MOVED = Degraded(Step.SMALLER_MODEL, "large", "small")
CAPPED = Degraded(Step.CAP_OUTPUT, "50", "5")


async def test_the_smaller_model_serves_from_its_step_on(encoder: PromptEncoder) -> None:
    before, after = await served(encoder, Step.CUT_CONTEXT), await served(encoder, Step.SMALLER_MODEL)
    assert (before.model.local.name, before.degraded) == ("large", (CAPPED,))
    assert (after.model.local.name, after.degraded) == ("small", (CAPPED, MOVED))
    assert (before.output_cap, after.output_cap) == (5, 5)


@pytest.mark.parametrize(("prompt", "is_small_up"), [("x" * 200, True), ("hello", False)])
async def test_what_the_smaller_model_cannot_serve_stays_with_its_own(
    encoder: PromptEncoder, prompt: str, is_small_up: bool
) -> None:
    fitted = await served(encoder, Step.SMALLER_MODEL, prompt=prompt, is_small_up=is_small_up)
    assert (fitted.model.local.name, fitted.degraded) == ("large", (CAPPED,))


async def test_what_no_model_can_serve_is_refused_in_the_words_of_its_own(encoder: PromptEncoder) -> None:
    with pytest.raises(PromptTooLong, match="for this model"):
        await served(encoder, Step.SMALLER_MODEL, prompt="x" * 600)


@pytest.mark.parametrize(
    ("ladder", "aliases", "model"),
    [
        ({"large": "cheap"}, {"cheap": "small"}, "large"),
        ({"big": "small"}, {"big": "large"}, "big"),
        ({"big": "cheap"}, {"big": "large", "cheap": "small"}, "large"),
    ],
)
async def test_a_smaller_model_may_be_said_by_aliases(
    encoder: PromptEncoder, ladder: dict[str, str], aliases: dict[str, str], model: str
) -> None:
    tenant = a_tenant(degradation=Degradation(smaller_models=ladder), aliases=aliases)
    fitted = await served(encoder, Step.SMALLER_MODEL, tenant=tenant, model=model)
    assert (fitted.model.local.name, fitted.degraded) == ("small", (MOVED,))


@pytest.mark.parametrize(
    "team",
    [
        Tenant(id=TenantId("team"), parent=TenantId("org"), models=("large",)),
        Tenant(id=TenantId("team"), parent=TenantId("org"), aliases={"small": "large"}),
    ],
)
async def test_who_may_not_call_the_parents_smaller_model_stays_with_its_own(
    encoder: PromptEncoder, team: Tenant
) -> None:
    org = Tenant(id=TenantId("org"), degradation=Degradation(smaller_models={"large": "small"}))
    tenant = TenantBook([org, team]).effective(team.id)
    fitted = await served(encoder, Step.SMALLER_MODEL, tenant=tenant)
    assert (fitted.model.local.name, fitted.degraded) == ("large", ())
