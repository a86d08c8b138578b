"""Values for the gateway's unit tests."""

import dataclasses
from typing import Any

from gateway.core.request import GenerationRequest, SamplingOptions
from gateway.core.validation import ModelProfile
from services.domain.capacity import Capacity
from services.domain.ids import TenantId
from services.domain.tenant import Tenant


def a_profile(**changes: Any) -> ModelProfile:
    profile = ModelProfile(
        vocab_size=300,
        max_prompt_bytes=16_384,
        max_cut_prompt_bytes=65_536,
        eos_token_ids=frozenset({257}),
        generation_defaults={},
        capacity=Capacity(max_context_tokens=2048, total_pages=64, page_size=16, max_sequences=16),
    )
    return dataclasses.replace(profile, **changes)


def a_tenant(**changes: Any) -> Tenant:
    return dataclasses.replace(Tenant(id=TenantId("acme")), **changes)


def a_request(**changes: Any) -> GenerationRequest:
    request = GenerationRequest(model="tiny", prompt="hello")
    return dataclasses.replace(request, **changes)


def a_sampled_request(**sampling: Any) -> GenerationRequest:
    return a_request(sampling=SamplingOptions(**sampling))
