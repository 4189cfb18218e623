"""Functions written as LLVM IR and compiled when they are first needed. The only module that uses llvmlite.

Some loops can't be written in Python: one turn takes less time than one step of the interpreter, or the loop must
run while another thread has the interpreter's lock. A module that needs such a loop writes it in LLVM's IR, and it
is compiled here for this machine's processor.

LLVM ends the process if it may not make memory executable, so that is tried first.
"""

import mmap
import sys
from collections.abc import Callable, Sequence
from logging import INFO, WARNING
from multiprocessing import parent_process
from typing import Any, NamedTuple


class Unavailable(NamedTuple):
    """Why functions can't be compiled in this process (the end of a sentence), a remedy, and the log level."""

    reason: str
    remedy: str
    level: int


class Compiled(NamedTuple):
    """The addresses of compiled functions, and the object that keeps them in memory."""

    addresses: list[int]
    engine: Any


def compiled(
    describe: Callable[[Any], Any], names: Sequence[str], *, for_cpu_engines: bool
) -> Compiled | Unavailable:
    """Functions, by name, of the module that ``describe`` builds with llvmlite's ``ir``; or why there are none.

    ``for_cpu_engines``: the functions are used in vLLM's engines on CPUs, which importing llvmlite may break.
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
    """Whether importing llvmlite may keep vLLM from making another engine in this process.

    Whenever an engine is made, vLLM's CPU platform looks up attributes of all values of all imported modules. An
    object of llvmlite takes any attribute's name for a function of its library, and fails. A process that was
    started for one engine makes no other one.
    """
    return "vllm" in sys.modules and "llvmlite" not in sys.modules and parent_process() is None


def _try_to_execute() -> None:
    """Map executable memory; an OSError if this process may not have any."""
    protection = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
    mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, protection).close()
