"""`python -m tests.fakes.failing_device FLAGS`: the worker, on a fake device that fails where it is told to.

Ranks that it starts are of this module too. What fails, where and when is in the environment, as JSON:
`stage` is a call of the device's (`capture`, `upload`, `replay`, `synchronize`), `error` is `memory` or
`sticky`, `in_follower` whether rank 1's device is meant. It fails once `trigger` is a file, which goes by
that: who starts again finds a device that works.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from services.chassis.fatal import entry
from tests.fakes.fake_stream import FakeStream
from worker.__main__ import main
from worker.executors import torch_ranks, triton_executor
from worker.executors.ranks import follower, processes

VARIABLE = "QUIRE_TEST_DEVICE_FAILURE"
ERRORS: dict[str, Exception] = {
    "memory": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.\nDetails."),
    "sticky": torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nDetails."),
}
SAYS = {
    "memory": "ran out of device memory: CUDA out of memory. Tried to allocate 2.00 MiB.",
    "sticky": "failed on the device: CUDA error: an illegal memory access was encountered",
}


class FailingStream(FakeStream):
    """Fails from one call on, for ever."""

    def __init__(self, *, stage: str, error: str, trigger: Path) -> None:
        super().__init__(computes=False)
        self._stage, self.trigger, self._fails_with = stage, trigger, ERRORS[error]

    def _note(self, name: str) -> None:
        if name == self._stage and self.error is None and self.trigger.exists():
            self.trigger.unlink()
            self.error = self._fails_with
        super()._note(name)


class RealExchanges:
    """gloo's group, whose operations are no launches of the fake device's: it makes tensors of its own."""

    def __init__(self, group: Any) -> None:
        self._group = group

    def _allgather_base(self, parts: Tensor, x: Tensor) -> Any:
        with _disable_current_modes():
            return self._group._allgather_base(parts, x)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)


def install(is_follower: bool) -> None:
    """Let this process compute on a device that fails, or on one that works if another rank's is meant."""
    failure: dict[str, Any] = json.loads(os.environ[VARIABLE])
    fails = failure.pop("in_follower") == is_follower
    failure["trigger"] = Path(failure["trigger"])
    triton_executor.stream_on = lambda device: (
        FailingStream(**failure) if fails else FakeStream(computes=False)
    )
    make_group = torch_ranks._over_gloo
    torch_ranks._over_gloo = lambda *args: RealExchanges(make_group(*args))
    processes.FOLLOWER = __spec__.name


if __name__ == "__main__":
    is_follower = sys.argv[1:2] != [] and sys.argv[1].isdigit()
    install(is_follower)
    if is_follower:
        follower.main()
    sys.exit(entry(main))
