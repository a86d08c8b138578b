"""Arbitrary tenants for property tests."""

from hypothesis import strategies as st

from services.domain.bands import Bands
from services.domain.degradation import Degradation
from services.domain.ids import TenantId
from services.domain.limits import Allowance, Budget, Limits, Rate
from services.domain.tenant import Prices, Tenant

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,10}", fullmatch=True)
tokens = st.integers(1, 10**15)
counts = st.integers(1, 10**6)
amounts = st.floats(0, 1e6)


def _rates(amount: st.SearchStrategy[int]) -> st.SearchStrategy[Rate]:
    return st.builds(Rate, per_minute=amount, burst=st.none() | amount)


budgets = st.builds(Budget, tokens=tokens, hard=st.booleans(), warn_at=st.floats(0, 1))
limits = st.builds(
    Limits,
    max_concurrency=st.none() | counts,
    requests_per_minute=st.none() | _rates(counts),
    tokens_per_minute=st.none() | _rates(tokens),
    prompt_tokens_per_minute=st.none() | _rates(tokens),
    output_tokens_per_minute=st.none() | _rates(tokens),
    daily=st.none() | budgets,
    monthly=st.none() | budgets,
    utc_offset_minutes=st.integers(-840, 840),
)
prices = st.builds(
    Prices,
    currency=st.sampled_from(["", "EUR"]),
    uncached_per_million=amounts,
    cached_per_million=amounts,
    output_per_million=amounts,
    page_hour=amounts,
)
tenants = st.builds(
    Tenant,
    id=names.map(TenantId),
    name=st.sampled_from(["", "Team A", "Équipe"]),
    band=st.sampled_from(Bands().names),
    weight=st.floats(0.001, 1000),
    limits=limits,
    long_from_tokens=st.none() | counts,
    short_class=limits,
    long_class=limits,
    model_limits=st.dictionaries(st.sampled_from(["small", "large"]), limits),
    default_max_output_tokens=st.integers(1, 100),
    max_output_tokens=st.none() | st.integers(100, 10**9),
    max_prompt_tokens=st.none() | counts,
    models=st.none() | st.just(("small", "large")),
    aliases=st.dictionaries(st.sampled_from(["fast", "good"]), st.sampled_from(["small", "large"])),
    kv_pages=st.none() | counts,
    certificates=st.just(()) | st.just(("team-a", "spiffe://a/b")),
    prices=st.none() | prices,
    degradation=st.none()
    | st.builds(
        Degradation,
        cap_output_tokens=st.none() | counts,
        cut_prompt_tokens=st.none() | counts,
        budget_at=st.none() | st.floats(0.01, 100),
    ),
    outage_allowance=st.none() | st.builds(Allowance, max_concurrency=counts, tokens=tokens),
)
