"""Measures what a model takes of a device's memory, and says what is left for its KV pool.

The profile run: load, run the warm-up with the largest steps on one page, and ask the driver between. What is
measured holds whatever the executor keeps, the code of kernels too, without this module knowing what that is.
Knows nothing of torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from services.chassis.fatal import FatalError
from worker.devices import Device
from worker.engine.batch import Batch
from worker.executors.base import Executor, ExecutorFault
from worker.memory import MIB, KvRoom, TooLittleMemory

RESERVE_SHARE = 0.05
"""Of a device's memory, kept free for what no profile run sees: graphs, fragments, libraries' own memory.

Graphs hold addresses of the pool, so they are captured once, after its size is known."""
LEAST_RESERVE_BYTES = 512 * MIB

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUse:
    """One profile run."""

    label: str
    """Which device."""
    total_bytes: int
    free_bytes: int
    """Before anything was loaded: what other processes left."""
    weight_bytes: int
    """What loading took."""
    step_bytes: int
    """What the largest steps took beside it, and the executor keeps: arena, logits, scratch, code."""
    step_tokens: int
    """Tokens of the largest step."""

    @property
    def reserve_bytes(self) -> int:
        return max(LEAST_RESERVE_BYTES, int(RESERVE_SHARE * self.total_bytes))

    @property
    def left_bytes(self) -> int:
        return self.free_bytes - self.weight_bytes - self.step_bytes - self.reserve_bytes


def measure_use(executor: Executor, device: Device, steps: Sequence[Batch], *, free_before: int) -> DeviceUse:
    """Run `steps`, none of them captured, on a pool of one page, which is dropped again; show how far it is.

    Args:
        executor: Loaded, its KV memory not allocated; it can be allocated anew after `close`.
        steps: The warm-up, the largest ones among them, on page 0.
        free_before: Bytes that were free on the device before loading.

    Raises:
        FatalError: A step does not fit beside the weights.
    """
    loaded = device.memory()
    num_tokens = max(len(step.ids) for step in steps)
    try:
        executor.allocate(1, captures=False)
        for done, step in enumerate(steps, 1):
            executor.execute(step)
            _log.info("warming_up", done=done, of=len(steps))
        after = device.memory()
    except ExecutorFault as exc:
        raise FatalError(
            f"the largest step of {num_tokens} tokens does not run beside the weights on {device.label}"
            f" ({loaded.free_bytes / MIB:,.0f} MiB were left): lower --max-step-tokens or --max-sequences,"
            f" or look at the cause: {exc}"
        ) from exc
    finally:
        executor.close()
    page = executor.profile.page_bytes
    return DeviceUse(
        label=device.label,
        total_bytes=loaded.total_bytes,
        free_bytes=free_before,
        weight_bytes=max(0, free_before - loaded.free_bytes),
        step_bytes=max(0, loaded.free_bytes - after.free_bytes - page),
        step_tokens=num_tokens,
    )


def device_room(use: DeviceUse, fraction: float | None) -> KvRoom:
    """Return what is left for the KV pool: all of it, or a fraction.

    Worked number: 143,771 MiB of which 143,000 are free, weights of 15,317, a largest step of 1,250 and a
    reserve of 7,189 (a twentieth) leave 119,244 MiB.

    Raises:
        TooLittleMemory: Nothing is left.
    """

    def mib(num_bytes: int) -> str:
        return f"{num_bytes / MIB:,.0f}"

    sum_text = (
        f"{mib(use.free_bytes)} of {mib(use.total_bytes)} MiB free on {use.label}"
        f" - {mib(use.weight_bytes)} weights - {mib(use.step_bytes)} largest step ({use.step_tokens} tokens)"
        f" - {mib(use.reserve_bytes)} reserve"
    )
    if use.left_bytes <= 0:
        raise TooLittleMemory(
            f"no memory is left for KV: {sum_text} = {mib(use.left_bytes)} MiB; take fewer bits"
            " (quire quantize), lower --max-step-tokens, or end what else runs there"
        )
    share = "" if fraction is None else f"{fraction:g} of "
    left = int(use.left_bytes * (1.0 if fraction is None else fraction))
    return KvRoom(left, use.left_bytes, f"{share}({sum_text} = {mib(use.left_bytes)} MiB)")
