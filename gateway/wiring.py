"""Puts the gateway's parts together; both doors are built on what comes out.

Decides nothing and starts nothing but background tasks.
"""

import asyncio
import secrets
import time
from collections.abc import Coroutine, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Protocol

import grpc

from gateway.backlog import Backlog
from gateway.budget_degradation import BudgetDegradation
from gateway.budget_enforcement import BudgetEnforcement
from gateway.budget_warnings import BudgetWarnings
from gateway.core.auth import Authenticator
from gateway.core.directory import TenantDirectory
from gateway.core.retry_budget import RetryBudget
from gateway.generate import Generate, GenerateSettings
from gateway.key_admin import KeyAdmin
from gateway.limit_lookup import LimitLookup
from gateway.live_table import LiveTable
from gateway.metrics import GatewayMetrics
from gateway.models import LocalModel, ModelBook
from gateway.outage import OutagePolicy
from gateway.prompts import PromptEncoder
from gateway.queries import Queries
from gateway.settler import Settler
from gateway.stores.quota import QuotaStore, Settlement
from gateway.stores.tenants import TenantLog
from gateway.tenant_admin import TenantAdmin
from gateway.tenant_feed import TenantFeed
from gateway.tenant_terms import CurrentTerms
from gateway.usage import UsageReports
from services.chassis.build import BUILD
from services.chassis.metrics import Metrics
from services.chassis.tls import Tls
from services.domain.bands import Bands
from services.domain.ids import Epoch
from services.rpc.gateway_scheduler_link import SchedulerLink
from services.rpc.gateway_worker_links import WorkerLinks


class Host(Protocol):
    """What the parts need of their process; `services.chassis.lifecycle.Lifecycle` is one."""

    @property
    def epoch(self) -> Epoch: ...
    def spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> object: ...


@dataclass(frozen=True, kw_only=True)
class AdminParts:
    """What the admin door is built on."""

    feed: TenantFeed
    log: TenantLog
    tenants: TenantAdmin
    keys: KeyAdmin


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The gateway without its doors."""

    generate: Generate
    queries: Queries
    auth: Authenticator
    admin: AdminParts
    metrics: GatewayMetrics
    scheduler: SchedulerLink
    workers: WorkerLinks
    settler: Settler
    outages: OutagePolicy
    table: LiveTable
    changed: asyncio.Event
    """Set when `is_ready` may have changed, draining aside."""

    @property
    def is_ready(self) -> bool:
        """Whether calls can be served now."""
        return (
            not self.generate.is_draining
            and self.scheduler.is_connected
            and self.admin.feed.directory.is_complete
            and bool(self.queries.models.served())
        )

    def observe_levels(self) -> None:
        """Set the gauges; done before each exposition."""
        self.metrics.levels(
            self.table.levels(time.monotonic()),
            num_pending=self.settler.num_pending,
            num_granted=self.outages.num_granted,
        )


def build_parts(
    host: Host,
    *,
    name: str,
    scheduler_channel: grpc.aio.Channel,
    models: Sequence[LocalModel],
    tenants: TenantDirectory,
    tenant_log: TenantLog,
    server_key: bytes,
    quota: QuotaStore,
    executor: Executor,
    metrics: Metrics,
    max_live: int = 4096,
    settings: GenerateSettings = GenerateSettings(),  # noqa: B008 (frozen)
    tls: Tls | None = None,
    backlog: Backlog | None = None,
) -> Parts:
    """Build everything and start the links and the settler.

    Args:
        backlog: Where settlements wait; None: in memory only.
    """
    gateway_metrics = GatewayMetrics(metrics)
    auth = Authenticator(tenants, server_key, time.time)
    changed = asyncio.Event()
    table = LiveTable(max_live)
    terms = CurrentTerms(tenants, table, settings.long_from_tokens)
    scheduler = _scheduler_link(
        host, scheduler_channel, name=name, tenants=tenants, terms=terms, changed=changed
    )
    workers = WorkerLinks(name=name, epoch=lambda: host.epoch, build=BUILD, spawn=host.spawn, tls=tls)
    book = _model_book(models, scheduler)
    feed = _tenant_feed(host, tenants, tenant_log, auth, scheduler, changed=changed)
    admin = AdminParts(
        feed=feed,
        log=tenant_log,
        tenants=TenantAdmin(feed, book.names),
        keys=KeyAdmin(feed, tenant_log, server_key),
    )
    encoder = PromptEncoder(executor, gateway_metrics.tokenized)
    store = OutagePolicy(quota)
    budgets = BudgetEnforcement(table)
    settler = _settler(store, backlog or Backlog(secrets.token_hex(8)), budgets, gateway_metrics)
    host.spawn(settler.run(), name="settler")
    limits = LimitLookup(auth=auth, quota=quota)
    generate = Generate(
        auth=auth,
        models=book,
        encoder=encoder,
        quota=store,
        settler=settler,
        scheduler=scheduler,
        workers=workers,
        retries=RetryBudget(settings.retry_percent, gateway_metrics.wished_again),
        table=table,
        metrics=gateway_metrics,
        budget_warnings=BudgetWarnings(metrics),
        budget_degradation=BudgetDegradation(limits, metrics),
        settings=settings,
    )
    queries = Queries(
        auth=auth,
        models=book,
        encoder=encoder,
        table=table,
        settler=settler,
        quota=quota,
        usage=UsageReports(tenants, quota, tenant_log, time.time),
        limits=limits,
        long_from_tokens=settings.long_from_tokens,
    )
    return Parts(
        generate=generate,
        queries=queries,
        auth=auth,
        admin=admin,
        metrics=gateway_metrics,
        scheduler=scheduler,
        workers=workers,
        settler=settler,
        outages=store,
        table=table,
        changed=changed,
    )


def _settler(
    store: OutagePolicy, backlog: Backlog, budgets: BudgetEnforcement, metrics: GatewayMetrics
) -> Settler:
    def on_lost(settlement: Settlement) -> None:
        store.lost(settlement)
        metrics.settlement_lost()

    return Settler(store, backlog, budgets.running, budgets.enforce, on_ended=store.ended, on_lost=on_lost)


def _scheduler_link(
    host: Host,
    channel: grpc.aio.Channel,
    *,
    name: str,
    tenants: TenantDirectory,
    terms: CurrentTerms,
    changed: asyncio.Event,
) -> SchedulerLink:
    """Return the link, started; it tells the directory which bands there are."""

    def on_change() -> None:
        if link.bands is not None:
            tenants.set_bands(link.bands)
        changed.set()

    link = SchedulerLink(
        channel, name=name, epoch=lambda: host.epoch, build=BUILD, terms=terms, on_change=on_change
    )
    host.spawn(link.run(), name="scheduler-link")
    return link


def _model_book(models: Sequence[LocalModel], scheduler: SchedulerLink) -> ModelBook:
    """Return the models of this gateway as the scheduler says they are served."""
    return ModelBook(
        models,
        lambda: scheduler.models,
        lambda: scheduler.bands or Bands(),
        lambda: scheduler.tenant_steps,
    )


def _tenant_feed(
    host: Host,
    tenants: TenantDirectory,
    log: TenantLog,
    auth: Authenticator,
    scheduler: SchedulerLink,
    *,
    changed: asyncio.Event,
) -> TenantFeed:
    """Return what keeps tenants and keys as the store has them, started; the scheduler hears of edits."""

    def on_change() -> None:
        scheduler.edited()
        changed.set()

    feed = TenantFeed(tenants, log, auth.take_used, on_change)
    host.spawn(feed.run(), name="tenants")
    return feed
