"""Functions that are described in LLVM's words and compiled when they are first needed. All that knows llvmlite.

Some loops can't be Python's: what they do millions of times takes less than one of its steps, or must go on while
others have the interpreter's lock. Nothing that Python brings makes them, so the loops are described by whoever
needs them, and compiled here for the processor that there is.

LLVM ends the process if it may not make memory executable, so that is tried before.
"""

import mmap
import sys
from collections.abc import Callable, Sequence
from logging import INFO, WARNING
from multiprocessing import parent_process
from typing import Any, NamedTuple


class Unavailable(NamedTuple):
    """Why something can't be compiled in this process, after its name; what to install; how loudly to tell."""

    reason: str
    remedy: str
    level: int


class Compiled(NamedTuple):
    """Where functions are, and what keeps them there."""

    addresses: list[int]
    engine: Any


def compiled(
    describe: Callable[[Any], Any], names: Sequence[str], *, for_cpu_engines: bool
) -> Compiled | Unavailable:
    """Functions of the module that ``describe`` makes of llvmlite's ``ir``, by name, or why there are none.

    ``for_cpu_engines``: whether they are for engines of vLLM without an accelerator, which llvmlite may break.
    """
    if for_cpu_engines and _would_break_engines():
        reason = "needs llvmlite, at which vLLM fails if it makes another engine for a CPU in this process"
        return Unavailable(reason, "let engines have processes of their own", INFO)
    try:
        from llvmlite import binding, ir
    except (ImportError, OSError) as error:
        reason = f"needs llvmlite, which can't be imported ({error})"
        return Unavailable(reason, "install kv-offload-cpu[host]", INFO)
    try:
        _try_to_execute()
    except (AttributeError, OSError) as error:
        return Unavailable(f"needs memory that may be executed, and gets none ({error})", "", INFO)
    try:
        return _compile(binding, str(describe(ir)), names)
    except Exception as error:  # noqa: BLE001 - whatever LLVM raises, there is another way
        return Unavailable(f"can't be compiled ({type(error).__name__}: {error})", "", WARNING)


def _compile(binding: Any, text: str, names: Sequence[str]) -> Compiled:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    processor, features = binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()
    target = binding.Target.from_default_triple()
    machine = target.create_target_machine(cpu=processor, features=features, opt=3)
    module = binding.parse_assembly(text)
    module.verify()
    engine = binding.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return Compiled([engine.get_function_address(name) for name in names], engine)


def _would_break_engines() -> bool:
    """Whether to import llvmlite may keep vLLM from making an engine.

    Of each module that is imported, its CPU platform asks all values for their attributes whenever an engine is
    made, and one of llvmlite's has any attribute, as a function of its library. A process that was started for an
    engine makes no other one.
    """
    return "vllm" in sys.modules and "llvmlite" not in sys.modules and parent_process() is None


def _try_to_execute() -> None:
    """Whether memory of one's own may be executed; an OSError if not."""
    protection = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
    mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, protection).close()
