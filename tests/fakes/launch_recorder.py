"""A compiler that compiles nothing: it notes what Triton would compile for each launch, and launches nothing.

Keys are made by Triton's own code for a real target, from the kernels' own arguments, under the interpreter.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction, create_function_from_signature


class LaunchRecorder:
    """Every compilation that launches have asked for so far."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.keys: set[tuple[object, ...]] = set()
        backend: Any = make_backend(GPUTarget("cuda", 90, 32))

        @cache
        def binder(function: Callable[..., object]) -> Any:
            made = JITFunction(function)
            return create_function_from_signature(made.signature, made.params, backend)

        def run(kernel: Any, *args: Any, grid: object, warmup: bool, **options: Any) -> None:
            _, specialization, rest = binder(kernel.fn)(*args, **options)
            key = (kernel.fn.__name__, *map(str, specialization), str(sorted(rest.items())))
            self.keys.add(key)

        monkeypatch.setattr(InterpretedFunction, "run", run)
