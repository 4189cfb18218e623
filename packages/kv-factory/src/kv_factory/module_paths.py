"""Whether a configuration may name modules to import (``kv_connector_module_path``, ``spec_module_path``).

Importing a module runs it, so whoever writes such a configuration runs code in the engine. An operator whose
configuration is not trusted forbids it in one of three ways, and each of them can only take away:

* the environment, ``KV_FACTORY_ALLOW_MODULE_PATHS=0``: for the whole process;
* ``forbid_module_paths()``: for the whole process from now on. There is no way back but ``isolated`` in tests;
* ``allow_module_paths=False`` in a call: for that call and everything it calls in the same thread, such as the
  children that a MultiConnector creates in its constructor.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from kv_api import ConfigError
from kv_factory.environment import ALLOW_MODULE_PATHS, read_switch

_forbidden_in_call = ContextVar("kv_factory_module_paths_forbidden", default=False)


class _Process:
    """What holds for the whole process."""

    forbidden = False


def forbid_module_paths() -> None:
    """Refuse, from now on and in every thread, modules that a configuration names."""
    _Process.forbidden = True


def module_paths_allowed() -> bool:
    """Whether a configuration may name modules here and now."""
    return _who_forbids() is None


@contextmanager
def limit_module_paths(*, allow_module_paths: bool) -> Iterator[None]:
    """Forbid module paths within a call, or leave them as they are."""
    token = _forbidden_in_call.set(_forbidden_in_call.get() or not allow_module_paths)
    try:
        yield
    finally:
        _forbidden_in_call.reset(token)


def require_module_paths(subject: str, key: str, module_path: str) -> None:
    """Refuse the module that a configuration names for ``subject`` under ``key`` when that is forbidden."""
    reason = _who_forbids()
    if reason is not None:
        raise ConfigError(
            f"{subject}: {key} {module_path!r} is refused, because {reason}; "
            "use a name that is registered or that an installed package offers"
        )


@contextmanager
def isolated_module_paths() -> Iterator[None]:
    """Begin with module paths allowed (but for the environment), and put everything back at the end."""
    before = _Process.forbidden
    token = _forbidden_in_call.set(False)
    _Process.forbidden = False
    try:
        yield
    finally:
        _Process.forbidden = before
        _forbidden_in_call.reset(token)


def _who_forbids() -> str | None:
    if _forbidden_in_call.get():
        return "the call said allow_module_paths=False"
    if _Process.forbidden:
        return "forbid_module_paths() was called"
    switch = read_switch(ALLOW_MODULE_PATHS)
    return None if switch.on else f"{ALLOW_MODULE_PATHS} {switch.why}"
