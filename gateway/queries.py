"""What callers may ask besides a generation: token ids, models, and what became of a request."""

from dataclasses import dataclass

from gateway.attempts import Phase
from gateway.core.auth import Authenticator
from gateway.core.ending import Ending, decode_ending
from gateway.core.events import Queued
from gateway.core.lengths import class_of
from gateway.core.request import Caller, ChatTurn
from gateway.limit_lookup import LimitLookup
from gateway.live_table import LiveTable
from gateway.models import ModelBook
from gateway.prompts import PromptEncoder
from gateway.settler import Settler
from gateway.stores.quota import QuotaStore
from gateway.usage import UsageReports
from services.domain.errors import UnknownRequest
from services.domain.generation import RequestClass
from services.domain.ids import RequestId
from services.rpc.gateway_values import ModelState


@dataclass(frozen=True, slots=True)
class InProgress:
    """A request that is being served."""

    worker: str
    attempt: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Tokens:
    """Text as ids."""

    ids: list[int]
    token_bytes: list[bytes]
    """Parallel to `ids`, or empty when not asked for."""
    max_context_tokens: int
    request_class: RequestClass
    """Of a generation with this input."""


@dataclass(frozen=True, kw_only=True)
class Queries:
    """Answers questions; changes nothing."""

    auth: Authenticator
    models: ModelBook
    encoder: PromptEncoder
    table: LiveTable
    settler: Settler
    quota: QuotaStore
    usage: UsageReports
    limits: LimitLookup
    long_from_tokens: int

    def served_models(self, caller: Caller) -> list[ModelState]:
        """Return the models that the caller can call now, by the names it may use."""
        return self.models.served_for(self.auth.tenant_of(caller))

    async def tokenize(
        self,
        caller: Caller,
        model: str,
        text: str | None,
        chat: tuple[ChatTurn, ...] | None,
        *,
        return_bytes: bool = False,
    ) -> Tokens:
        """Return the ids that a generation with this input would begin with.

        Raises:
            ServeError: A model that the tenant may not call, or an input that a generation would refuse too.
        """
        tenant = self.auth.tenant_of(caller)
        served = self.models.find_for(tenant, model)
        ids = await self.encoder.tokenize(served.profile, served.local, text, chat)
        pieces = [served.local.tokenizer.token_bytes(one) for one in ids] if return_bytes else []
        request_class = class_of(None, tenant, len(ids), self.long_from_tokens)
        return Tokens(ids, pieces, served.state.capacity.max_context_tokens, request_class)

    async def request(self, caller: Caller, request_id: RequestId) -> Queued | InProgress | Ending:
        """Say what became of one of the caller's own requests.

        Raises:
            UnknownRequest: Not known here, older than 10 minutes, or somebody else's.
            DependencyDown: It is over and the store does not answer.
        """
        live = self.table.find(caller.tenant, request_id)
        if live is not None:
            attempts = live.attempts
            if attempts.phase in (Phase.PREPARING, Phase.WAITING) or attempts.placement is None:
                return live.waits or Queued(request_id, 0, None)
            return InProgress(attempts.placement.worker, attempts.number, live.usage.output_tokens)
        ending = self.settler.pending_ending(caller.tenant, request_id)
        if ending is None:
            organisation = self.auth.organisation_of(caller)
            ending = await self.quota.ending(organisation, caller.tenant, request_id)
        if not ending:
            raise UnknownRequest("no request of yours with this id ended within the last 10 minutes")
        return decode_ending(ending)
