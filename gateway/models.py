"""The models this gateway can turn text into tokens for, joined with what the scheduler says of them.

Knows tokenizers and templates by their interface and capacity by name. Does not know where workers are.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gateway.core.request import ChatTurn
from gateway.core.validation import ModelProfile
from services.artifacts.artifact import open_artifact
from services.domain.bands import Bands
from services.domain.degradation import Step
from services.domain.document_values import shown
from services.domain.errors import ErrorDetail, InvalidField, NotYours, NoWorker, UnknownModel
from services.domain.generation import Band
from services.domain.ids import TenantId
from services.domain.tenant import Tenant
from services.rpc.gateway_values import ModelState

MAX_PROMPT_BYTES = 4 * 2**20
"""No prompt is longer, whatever the model's context."""


class Fitted(Protocol):
    """A prompt that was cut to fit."""

    @property
    def ids(self) -> list[int]: ...
    @property
    def num_cut_tokens(self) -> int: ...


class Tokenizer(Protocol):
    """Text to ids and ids to bytes, see `services.artifacts.tokenizer`."""

    def encode_text(self, text: str, *, add_bos: bool, max_tokens: int | None = None) -> list[int]: ...
    def encode_text_to_fit(self, text: str, max_tokens: int, *, add_bos: bool) -> Fitted: ...
    def token_bytes(self, token_id: int) -> bytes: ...
    def max_chars(self, context_tokens: int) -> int: ...
    @property
    def bos_id(self) -> int | None: ...


class Template(Protocol):
    """Conversations to ids, see `services.artifacts.chat_template`."""

    def encode(self, messages: Sequence[ChatTurn], *, max_tokens: int | None = None) -> list[int]: ...
    def encode_to_fit(self, messages: Sequence[ChatTurn], max_tokens: int) -> Fitted: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalModel:
    """What this gateway itself knows of a model."""

    name: str
    tokenizer: Tokenizer
    template: Template | None
    """None: the model has none, so it takes no conversations."""
    vocab_size: int
    """Rows of the model's output; ids below it are valid."""
    eos_token_ids: frozenset[int]
    generation_defaults: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model that can be called now."""

    local: LocalModel
    state: ModelState
    profile: ModelProfile


class ModelBook:
    """Finds a model by name.

    Args:
        states: What the scheduler last said; asked for each time.
        bands: The same of its bands.
        tenant_steps: The same of how far tenants have climbed the ladder of degradation by themselves.
    """

    def __init__(
        self,
        models: Sequence[LocalModel],
        states: Callable[[], Mapping[str, ModelState]],
        bands: Callable[[], Bands] = Bands,
        tenant_steps: Callable[[], Mapping[tuple[str, Band, TenantId], Step]] = dict,
    ) -> None:
        self._local = {model.name: model for model in models}
        self._states = states
        self._bands = bands
        self._tenant_steps = tenant_steps

    @property
    def bands(self) -> Bands:
        """Return the bands that a request may ask for now."""
        return self._bands()

    def names(self) -> frozenset[str]:
        """Return the models that this gateway or any worker has."""
        return frozenset(self._local) | frozenset(self._states())

    def served(self) -> list[ModelState]:
        """Return the models that can be called now, by name."""
        return [state for name, state in sorted(self._states().items()) if name in self._local]

    def served_for(self, tenant: Tenant) -> list[ModelState]:
        """Return what a tenant can call now, by the names that it may use; an alias is a name too."""
        served = {state.name: state for state in self.served()}
        names = {name: tenant.aliases.get(name, name) for name in (*served, *tenant.aliases)}
        return [
            dataclasses.replace(served[model], name=name)
            for name, model in sorted(names.items())
            if model in served and (tenant.models is None or model in tenant.models)
        ]

    def step(self, model: ServedModel, band: Band, tenant: TenantId) -> Step:
        """Return how far a tenant has degraded in a band, by itself or with all of it."""
        of_tenant = self._tenant_steps().get((model.state.name, band, tenant), Step.NONE)
        return max(model.state.steps.get(band, Step.NONE), of_tenant)

    def find(self, name: str) -> ServedModel:
        """Return a model.

        Raises:
            UnknownModel: It is not known here.
            NoWorker: It is known, but no worker serves it now.
        """
        local = self._local.get(name)
        if local is None:
            served = ", ".join(sorted(self._local))
            raise UnknownModel(f"the model {shown(name)} is not served here; served are: {served}")
        state = self._states().get(name)
        if state is None:
            raise NoWorker(f"no worker serves {name} now", ErrorDetail(retry_after_s=1.0))
        profile = ModelProfile(
            vocab_size=local.vocab_size,
            max_prompt_bytes=min(
                MAX_PROMPT_BYTES, local.tokenizer.max_chars(state.capacity.max_context_tokens)
            ),
            max_cut_prompt_bytes=MAX_PROMPT_BYTES,
            eos_token_ids=local.eos_token_ids,
            generation_defaults=local.generation_defaults,
            capacity=state.capacity,
        )
        return ServedModel(local=local, state=state, profile=profile)

    def find_for(self, tenant: Tenant, name: str) -> ServedModel:
        """Return what a tenant means by `name`: the model of its alias, or a model it may call.

        Raises:
            InvalidField: There is no name.
            NotYours: The tenant may not call it.
            UnknownModel, NoWorker: As `find` does.
        """
        if not name:
            raise InvalidField("model", "must be the name of a model, got an empty string")
        wanted = tenant.aliases.get(name, name)
        if tenant.models is not None and wanted not in tenant.models:
            may = ", ".join(sorted({*tenant.models, *tenant.aliases})) or "none"
            raise NotYours(f"tenant {tenant.id} may not call model {name}; it may call: {may}")
        return self.find(wanted)


def load_model(name: str, path: Path) -> LocalModel:
    """Read tokenizer, template and defaults of a model on disk; no weights are read.

    Raises:
        ArtifactError: It is missing, damaged or of a kind we do not read.
    """
    artifact = open_artifact(path)
    return LocalModel(
        name=name,
        tokenizer=artifact.tokenizer,
        template=artifact.template,
        vocab_size=int(artifact.config["vocab_size"]),
        eos_token_ids=artifact.eos_ids,
        generation_defaults=artifact.generation_defaults,
    )
