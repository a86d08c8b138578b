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
from gateway.stores.quota import QuotaStore, Running, Settlement
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
    changed = asyncio.Event()
    auth = Authenticator(tenants, server_key, time.time)
    table = LiveTable(max_live)
    terms = CurrentTerms(tenants, table, settings.long_from_tokens)
    scheduler = _scheduler_link(
        host, scheduler_channel, name=name, tenants=tenants, terms=terms, changed=changed
    )
    workers = WorkerLinks(name=name, epoch=lambda: host.epoch, build=BUILD, spawn=host.spawn, tls=tls)
    feed = _tenant_feed(host, tenants, tenant_log, auth, scheduler, changed=changed)
    outages = OutagePolicy(quota)
    limits = LimitLookup(auth=auth, quota=quota)
    generate = Generate(
        auth=auth,
        models=_model_book(models, scheduler),
        encoder=PromptEncoder(executor, gateway_metrics.tokenized),
        quota=outages,
        settler=_settler(host, outages, backlog or Backlog(secrets.token_hex(8)), table, gateway_metrics),
        scheduler=scheduler,
        workers=workers,
        retries=RetryBudget(settings.retry_percent, gateway_metrics.wished_again),
        table=table,
        metrics=gateway_metrics,
        budget_warnings=BudgetWarnings(metrics),
        budget_degradation=BudgetDegradation(limits, metrics),
        settings=settings,
    )
    return Parts(
        generate=generate,
        queries=_queries(generate, quota, UsageReports(tenants, quota, tenant_log, time.time), limits),
        auth=auth,
        admin=_admin_parts(feed, tenant_log, generate.models, server_key),
        metrics=gateway_metrics,
        scheduler=scheduler,
        workers=workers,
        settler=generate.settler,
        outages=outages,
        table=table,
        changed=changed,
    )


def _queries(generate: Generate, quota: QuotaStore, usage: UsageReports, limits: LimitLookup) -> Queries:
    """Return what answers questions about the generations, from the same parts as they are served with."""
    return Queries(
        auth=generate.auth,
        models=generate.models,
        encoder=generate.encoder,
        table=generate.table,
        settler=generate.settler,
        quota=quota,
        usage=usage,
        limits=limits,
        long_from_tokens=generate.settings.long_from_tokens,
    )


def _admin_parts(feed: TenantFeed, log: TenantLog, models: ModelBook, server_key: bytes) -> AdminParts:
    return AdminParts(
        feed=feed, log=log, tenants=TenantAdmin(feed, models.names), keys=KeyAdmin(feed, log, server_key)
    )


def _settler(
    host: Host, store: OutagePolicy, backlog: Backlog, table: LiveTable, metrics: GatewayMetrics
) -> Settler:
    """Return what settles, started; it ends those whose hard budget is spent."""
    budgets = BudgetEnforcement(table)

    def running(every: bool) -> list[Running]:
        return budgets.running(every or store.is_ahead)

    def on_lost(settlement: Settlement) -> None:
        store.lost(settlement)
        metrics.settlement_lost()

    settler = Settler(store, backlog, running, budgets.enforce, on_ended=store.ended, on_lost=on_lost)
    host.spawn(settler.run(), name="settler")
    return settler


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
