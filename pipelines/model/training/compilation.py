"""torch.compile where it works; where it does not, a line that says why, and training without it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

_LONGEST_REASON = 200


def wants_compilation(choice: str, device: torch.device) -> bool:
    """Tell whether to compile: `on`, `off`, or `auto`, which is on for a CUDA card only.

    On a CPU compilation takes longer than a small model trains, and brings it little.
    """
    return choice == "on" or (choice == "auto" and device.type == "cuda")


def compile_modules(modules: Sequence[nn.Module]) -> None:
    """Let modules be compiled in place when they are called; `keep_if_it_works` calls them for the first time."""
    for module in modules:
        module.compile()


def keep_if_it_works(modules: Sequence[nn.Module], try_out: Callable[[], None], note: Callable[[str], None]) -> bool:
    """Run `try_out`, which calls the modules; take back their compilation where it fails. Return whether they keep it.

    Running out of memory is no failure of the compiler and is raised.
    """
    try:
        try_out()
        return True
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - the compiler, and the C++ compiler it calls, may raise anything
        for module in modules:
            module._compiled_call_impl = None
        torch._dynamo.reset()
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_REASON]
        note(f"torch.compile failed, so training goes on without it ({reason})")
        return False
