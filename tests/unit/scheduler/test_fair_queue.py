"""Fair shares between tenants: the bound, no starvation, prefixes, weights, idleness, floors, cost."""

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.fair_queue import FairPolicy, as_vtc
from scheduler.core.fifo import FifoPolicy
from scheduler.core.policy import QueuePolicy
from scheduler.core.request import PromptUse
from scheduler.core.share_queue import FairRules
from services.domain.generation import Band, RequestClass
from services.domain.ids import TenantId
from tests.unit.scheduler.backlog import COSTS, WORKER, Backlog, Tenant
from tests.unit.scheduler.builders import MODEL

SEATS = 4
QUANTUM = 2048.0
RULES = FairRules(quantum=QUANTUM)
TENANTS = st.lists(
    st.builds(
        Tenant,
        name=st.uuids().map(str),
        weight=st.sampled_from([0.5, 1.0, 2.0, 4.0]),
        prompts=st.sampled_from([(1, 32), (1, 512), (400, 512)]),
        outputs=st.sampled_from([(0, 4), (0, 64), (60, 64)]),
        hit_rate=st.sampled_from([0.0, 0.5, 1.0]),
        long_from=st.sampled_from([0, 256, 1_000_000]),
    ),
    min_size=2,
    max_size=5,
    unique_by=lambda tenant: tenant.name,
)


def most_at_once(tenant: Tenant) -> float:
    """U of the docstring: a prompt (the wrong predictions of the live ones too) and the live outputs."""
    outputs = SEATS * COSTS.output_cost * tenant.outputs[1]
    return (tenant.prompts[1] * (1 + SEATS) * COSTS.uncached_cost + outputs) / tenant.weight


def widest_gaps(policy: QueuePolicy, tenants: list[Tenant], seed: int, num_steps: int) -> dict[object, float]:
    """Return by pair how far its difference of weighted service has moved between any two moments."""
    backlog = Backlog(policy, seed, seats=SEATS)
    for tenant in tenants:
        backlog.join(tenant)
    pairs = list(combinations(tenants, 2))
    least = dict.fromkeys(range(len(pairs)), 0.0)
    most = dict.fromkeys(range(len(pairs)), 0.0)
    for _ in range(num_steps):
        backlog.step()
        for index, (f, g) in enumerate(pairs):
            difference = f.service / f.weight - g.service / g.weight
            least[index] = min(least[index], difference)
            most[index] = max(most[index], difference)
    return {(f.name, g.name): most[i] - least[i] for i, (f, g) in enumerate(pairs)}


@settings(max_examples=40, deadline=None)
@given(tenants=TENANTS, seed=st.integers(0, 2**32 - 1), plain=st.booleans())
def test_the_service_of_waiting_tenants_differs_by_no_more_than_the_bound(
    tenants: list[Tenant], seed: int, plain: bool
) -> None:
    rules = as_vtc(RULES) if plain else RULES
    gaps = widest_gaps(FairPolicy(rules), tenants, seed, 300)
    for f, g in combinations(tenants, 2):
        assert gaps[f.name, g.name] <= 2 * rules.quantum + most_at_once(f) + most_at_once(g)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), weight=st.sampled_from([0.5, 1.0, 4.0]))
def test_the_bound_holds_between_a_tenant_of_long_prompts_and_one_of_short_ones(
    seed: int, weight: float
) -> None:
    short = Tenant("short", prompts=(1, 32))
    long = Tenant("long", prompts=(1024, 2048), weight=weight, long_from=0)
    both = Tenant("both", prompts=(1, 2048), long_from=1024)
    gaps = widest_gaps(FairPolicy(RULES), [short, long, both], seed, 300)
    for f, g in combinations((short, long, both), 2):
        assert gaps[f.name, g.name] <= 2 * QUANTUM + most_at_once(f) + most_at_once(g)


def test_a_tenants_long_requests_do_not_starve_behind_its_own_short_ones() -> None:
    backlog = Backlog(FairPolicy(FairRules(max_passes=3)), 1)
    tenant = Tenant("one", long_from=100)
    for _ in range(3):
        backlog.ask(tenant, 100)
    for _ in range(12):
        backlog.ask(tenant, 10)
    placed = []
    for _ in range(8):
        request = next(backlog.policy.candidates(MODEL, held=()))
        backlog.policy.placed(request, WORKER, 0)
        placed.append(request.acquire.num_prompt_tokens)
    assert placed == [10, 10, 10, 100] * 2


def test_a_newcomer_is_owed_nothing_for_what_the_other_class_has_not_had() -> None:
    """The long class is at its limit, so its tenant falls behind; a new short one joins the short ones."""
    backlog = Backlog(FairPolicy(RULES), 1)
    backlog.ask(Tenant("long", long_from=0), 2000)
    for _ in range(100):
        backlog.ask(Tenant("old"), 500)
    policy = backlog.policy
    for _ in range(50):
        request = next(policy.candidates(MODEL, closed=[RequestClass.LONG], held=()))
        policy.placed(request, WORKER, 0)
    for _ in range(20):
        backlog.ask(Tenant("new"), 500)
    placed = []
    for _ in range(16):
        request = next(policy.candidates(MODEL, closed=[RequestClass.LONG], held=()))
        policy.placed(request, WORKER, 0)
        placed.append(str(request.acquire.tenant))
    assert 7 <= placed.count("new") <= 9
    assert next(policy.candidates(MODEL, held=())).acquire.tenant == "long"


def test_fifo_breaks_the_bound() -> None:
    """The control: without shares the tenant with the longer prompts gets more and more."""
    small, large = Tenant("small", prompts=(1, 32)), Tenant("large", prompts=(400, 512))
    gap = widest_gaps(FifoPolicy(), [small, large], 1, 300)["small", "large"]
    assert gap > 2 * (2 * QUANTUM + most_at_once(small) + most_at_once(large))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), num_rivals=st.integers(1, 20))
def test_nobody_starves_however_well_the_others_are_cached(seed: int, num_rivals: int) -> None:
    backlog = Backlog(FairPolicy(RULES), seed, seats=SEATS)
    rivals = [
        Tenant(f"rival{i}", prompts=(100, 200), outputs=(0, 8), hit_rate=1.0) for i in range(num_rivals)
    ]
    for rival in rivals:
        backlog.join(rival)
    for _ in range(50):
        backlog.step()
    quiet = Tenant("quiet", is_backlogged=False)
    backlog.ask(quiet, 300)
    before = sum(rival.service for rival in rivals)
    while backlog.policy.num_waiting(MODEL) > 2 * num_rivals:
        backlog.step()
    passed_by = sum(rival.service for rival in rivals) - before
    assert passed_by <= 2 * sum(QUANTUM + most_at_once(rival) for rival in rivals)


def names(policy: QueuePolicy, count: int) -> list[str]:
    """Return whose requests are placed next, one after the other."""
    placed = []
    for _ in range(count):
        request = next(policy.candidates(MODEL, held=()))
        policy.placed(request, WORKER, request.cached_tokens((WORKER, 1), 16))  # type: ignore[arg-type]
        placed.append(str(request.acquire.tenant))
    return placed


def test_the_longest_cached_prefix_goes_first_until_its_tenant_is_a_quantum_ahead() -> None:
    backlog = Backlog(FairPolicy(FairRules(quantum=100)), 1)
    cold, warm = Tenant("cold"), Tenant("warm")
    for _ in range(2):
        backlog.ask(cold, 320)
    for _ in range(9):
        backlog.ask(warm, 320, cached=304)
    # A warm prompt costs 16 + 0.1 * 304 = 46.4: the third one takes it beyond 100, the cold one costs 320.
    assert names(backlog.policy, 6) == ["warm"] * 3 + ["cold"] + ["warm"] * 2


def test_plain_vtc_does_not_look_at_prefixes() -> None:
    backlog = Backlog(FairPolicy(as_vtc(FairRules())), 1)
    cold, warm = Tenant("cold"), Tenant("warm")
    for _ in range(2):
        backlog.ask(cold, 64)
        backlog.ask(warm, 64, cached=48)
    assert names(backlog.policy, 2) == ["cold", "warm"]


def test_a_head_that_longer_prefixes_passed_often_enough_goes_first() -> None:
    backlog = Backlog(FairPolicy(FairRules(quantum=1e9, max_passes=3)), 1)
    backlog.ask(Tenant("cold"), 320)
    for _ in range(9):
        backlog.ask(Tenant("warm"), 320, cached=304)
    assert names(backlog.policy, 5) == ["warm"] * 3 + ["cold", "warm"]


def test_idleness_earns_nothing() -> None:
    backlog = Backlog(FairPolicy(as_vtc(FairRules())), 1)
    for _ in range(40):
        backlog.ask(Tenant("busy"), 100)
    names(backlog.policy, 20)
    for _ in range(20):
        backlog.ask(Tenant("late"), 100)
    assert names(backlog.policy, 10).count("late") == 5, "it had nothing for 20 placements and is owed none"


def test_a_quiet_tenant_is_next_behind_a_flood() -> None:
    backlog = Backlog(FairPolicy(as_vtc(FairRules())), 1)
    for _ in range(1000):
        backlog.ask(Tenant("flood"), 4000)
    names(backlog.policy, 3)
    request = backlog.ask(Tenant("quiet"), 128)
    assert backlog.policy.position(request) == 2, "one of the flood may go before it"
    assert names(backlog.policy, 2).count("quiet") == 1


def test_output_is_charged_as_it_is_reported_and_prompts_as_they_were_computed() -> None:
    backlog = Backlog(FairPolicy(as_vtc(FairRules())), 1)
    a, b = Tenant("a"), Tenant("b")
    first = backlog.ask(a, 100)
    for _ in range(6):
        backlog.ask(a, 100)
        backlog.ask(b, 100)
    assert names(backlog.policy, 2) == ["a", "b"]
    backlog.policy.used(WORKER, TenantId("a"), 100)
    assert names(backlog.policy, 3) == ["b", "b", "a"], "100 tokens of output are two prompts of 100"
    backlog.policy.ended(first.key, PromptUse(0, 0))
    assert names(backlog.policy, 2) == ["a", "b"], "a's first prompt was not computed after all"


def test_a_tenant_held_back_holds_up_nobody_and_saves_up_nothing() -> None:
    backlog = Backlog(FairPolicy(as_vtc(FairRules())), 1)
    for _ in range(20):
        for name in "abc":
            backlog.ask(Tenant(name), 100)
    policy = backlog.policy
    for _ in range(20):
        request = next(policy.candidates(MODEL, held={TenantId("a")}))
        assert request.acquire.tenant != "a"
        policy.placed(request, WORKER, 0)
    assert names(policy, 12).count("a") == 4


def test_a_lower_band_gets_its_floor_and_no_more() -> None:
    rules = FairRules(floors={Band.BATCH: 0.1})
    backlog = Backlog(FairPolicy(rules), 1)
    for _ in range(1000):
        backlog.ask(Tenant("urgent", band=Band.INTERACTIVE), 100)
        backlog.ask(Tenant("later", band=Band.BATCH), 100)
    assert 90 <= names(backlog.policy, 1000).count("later") <= 101
    without = Backlog(FairPolicy(FairRules(floors={})), 1)
    for _ in range(100):
        without.ask(Tenant("later", band=Band.BATCH), 100)
        without.ask(Tenant("urgent", band=Band.INTERACTIVE), 100)
    assert names(without.policy, 101) == ["urgent"] * 100 + ["later"], "the control: strict bands"


def test_all_are_offered_once_the_heads_of_the_eligible_first() -> None:
    backlog = Backlog(FairPolicy(FairRules(quantum=50)), 1)
    asked = [backlog.ask(Tenant(name), 40) for name in "aabbbc" for _ in range(3)]
    offered = list(backlog.policy.candidates(MODEL))
    assert {request.key for request in offered} == {request.key for request in asked}
    assert len(offered) == len(asked)
    assert [str(request.acquire.tenant) for request in offered[:6]] == list("abcabc")


def test_nothing_is_kept_of_tenants_that_are_served_and_gone() -> None:
    policy = FairPolicy(RULES)
    backlog = Backlog(policy, 1)
    for i in range(1000):
        request = backlog.ask(Tenant(f"t{i}"), 100)
        policy.placed(request, WORKER, 0)
        policy.ended(request.key, PromptUse(100, 0))
    for i in range(1000):
        policy.remove(backlog.ask(Tenant(f"u{i}"), 100))
    assert (len(policy._models), len(policy._place_of), len(policy._charges)) == (0, 0, 0)


def test_the_cost_of_a_decision_does_not_grow_with_the_queue() -> None:
    """Places of heaps touched by 200 decisions with 1,000 and with 20,000 waiting."""
    moves, num_tenants = {}, 1000
    for num_waiting in (1_000, 20_000):
        policy = FairPolicy(RULES)
        backlog = Backlog(policy, 1)
        tenants = [Tenant(f"t{i}") for i in range(num_tenants)]
        for i in range(num_waiting):
            backlog.ask(tenants[i % num_tenants], 100)
        queues = [queue for model in policy._models.values() for queue in model.queues]
        before = sum(queue.num_moves for queue in queues)
        for i in range(200):
            backlog.ask(tenants[i % num_tenants], 100)
            names(policy, 1)
        moves[num_waiting] = sum(queue.num_moves for queue in queues) - before
    assert moves[20_000] <= 1.2 * moves[1_000]
    assert moves[1_000] <= 200 * 120
