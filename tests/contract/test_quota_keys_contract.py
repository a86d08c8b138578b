"""An idempotency key is charged once, whoever hears of it first."""

import time

import pytest

from gateway.stores.quota import QuotaStore
from services.domain.errors import DuplicateKey
from services.domain.ids import RequestId
from services.domain.limits import Account
from tests.fakes.quota_values import a_reservation, a_running, a_settlement, simple, use_of


async def test_an_idempotency_key_is_charged_once(store: QuotaStore, account: Account) -> None:
    await store.reserve(a_reservation(account, "first", key="k"))
    with pytest.raises(DuplicateKey) as caught:
        await store.reserve(a_reservation(account, "second", key="k"))
    assert caught.value.detail.metadata["request_id"] == "first"
    await store.settle([a_settlement(account, "first", key="k")])
    with pytest.raises(DuplicateKey):
        await store.reserve(a_reservation(account, "third", key="k"))
    await store.reserve(a_reservation(account, "fourth", key="other"))
    sibling = simple(organisation=account.organisation, tenant="sibling")
    await store.reserve(a_reservation(sibling, "fifth", key="k"))


async def test_an_idempotency_key_of_a_request_that_cost_nothing_is_free_again(
    store: QuotaStore, account: Account
) -> None:
    await store.reserve(a_reservation(account, "first", key="k"))
    await store.settle([a_settlement(account, "first", 0, 0, key="k")])
    await store.reserve(a_reservation(account, "second", key="k"))


@pytest.mark.parametrize("told_by", ["settle", "renew"])
async def test_a_key_that_was_used_without_the_store_belongs_to_its_request_once_the_store_hears_of_it(
    store: QuotaStore, account: Account, told_by: str
) -> None:
    if told_by == "settle":
        await store.settle([a_settlement(account, "first", key="k")])
    else:
        await store.renew([a_running(account, "none"), a_running(account, "first", used=5, key="k")])
    with pytest.raises(DuplicateKey) as caught:
        await store.reserve(a_reservation(account, "second", key="k"))
    assert caught.value.detail.metadata["request_id"] == "first"


@pytest.mark.parametrize("is_renewed", [True, False])
async def test_of_two_that_ran_under_one_key_the_one_that_the_store_heard_of_first_is_charged(
    store: QuotaStore, account: Account, is_renewed: bool
) -> None:
    await store.reserve(a_reservation(account, "first", key="k"))
    if is_renewed:
        await store.renew([a_running(account, "elsewhere", used=25, key="k")])
    await store.settle([a_settlement(account, "elsewhere", output=70, key="k", ending=b"{}")])
    assert (await use_of(store, account)).day_spent == 0
    assert await store.ending(account.organisation, account.tenant, RequestId("elsewhere")) == b"{}"
    await store.settle([a_settlement(account, "first", key="k")])
    use = await use_of(store, account)
    assert (use.day_charged, use.day_spent, use.num_leases) == (40, 40, 0)
    days = range(int(time.time() / 86_400) - 1, int(time.time() / 86_400) + 1)
    records = await store.usage(account.organisation, account.tenant, days)
    assert [(one.counts.requests, one.counts.output_tokens) for one in records] == [(1, 30)]
