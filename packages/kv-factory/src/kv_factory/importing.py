"""Imports the class that an offer stands for (a name, a module, a class), or says in an error why it can't.

It has no state and no locks: Python's import system runs a module once, whichever threads ask for it.
"""

from functools import reduce
from importlib import import_module
from types import ModuleType
from typing import Any, Final, NamedTuple

from kv_api import ConfigError
from kv_api.errors import did_you_mean

_IMPORTLIB: Final = import_module.__code__.co_filename


class Target(NamedTuple):
    """A class that may not have been imported yet: ``module:attribute``."""

    module: str
    attribute: str

    def __str__(self) -> str:
        return f"{self.module}:{self.attribute}"

    @classmethod
    def parse(cls, text: str) -> "Target":
        """Read an entry point's ``module:attribute [extras]``. What is missing is left empty."""
        module, _, attribute = text.partition("[")[0].partition(":")
        return cls(module.strip(), attribute.strip())


class Offer(NamedTuple):
    """One way to get a class for a name: where the class is, and who offers it (a registration or a package)."""

    name: str
    target: Target
    origin: str


class Found(NamedTuple):
    """A class, and the words that name it in an error."""

    place: str
    loaded: type[Any]


def place_of(kind: str, offer: Offer) -> str:
    """The words that begin every error about ``offer``."""
    return f"{kind} {offer.name!r} ({offer.target}, {offer.origin})"


def import_class(kind: str, offer: Offer, bases: tuple[type[Any], ...]) -> Found:
    """Import the class of ``offer``; it must derive from one of ``bases``."""
    place = place_of(kind, offer)
    module_path, attribute = offer.target
    if not module_path or not attribute:
        raise ConfigError(f"{place}: expected 'module:class'")
    module = _imported(place, module_path)
    try:
        loaded: Any = reduce(getattr, attribute.split("."), module)
    except AttributeError as error:
        raise ConfigError(f"{place}: {_missing(module, module_path, attribute, bases)}") from error
    except Exception as error:
        raise ConfigError(f"{place}: getting {attribute!r} failed: {_brief(error)}") from error
    wanted = " or ".join(base.__name__ for base in bases)
    if not isinstance(loaded, type):
        raise ConfigError(f"{place}: expected a class derived from {wanted}, got {loaded!r}")
    if not issubclass(loaded, bases):
        raise ConfigError(
            f"{place}: {loaded.__qualname__} is no {kind}: it doesn't derive from {_why(loaded, bases)}"
        )
    return Found(place, loaded)


def _imported(place: str, module_path: str) -> ModuleType:
    try:
        return import_module(module_path)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_path}.".startswith(f"{error.name}."):
            raise ConfigError(f"{place}: there is no module {error.name!r}") from error
        raise ConfigError(_failed(place, module_path, error)) from error
    except (Exception, SystemExit) as error:
        raise ConfigError(_failed(place, module_path, error)) from error


def _failed(place: str, module_path: str, error: BaseException) -> str:
    """Say why an import failed, and in which line of which module: it may be one that the module imports."""
    said = f"{place}: importing {module_path!r} failed: {_brief(error)}"
    trace, line = error.__traceback__, ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if trace.tb_frame.f_globals is not globals() and not file.startswith("<frozen ") and file != _IMPORTLIB:
            line = f" ({file.rsplit('/', 1)[-1]}:{trace.tb_lineno})"
        trace = trace.tb_next
    return said if isinstance(error, (SyntaxError, ConfigError)) else said + line  # these say where


def _brief(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _missing(module: ModuleType, module_path: str, attribute: str, bases: tuple[type[Any], ...]) -> str:
    """Say that a module lacks ``attribute``, and which classes it has instead."""
    if getattr(getattr(module, "__spec__", None), "_initializing", False):
        return f"module {module_path!r} has no {attribute!r} yet: it is still being imported (a circular import?)"
    public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    fitting = [
        name
        for name, value in public.items()
        if isinstance(value, type) and issubclass(value, bases) and value not in bases
    ]
    has = f"; it has: {', '.join(sorted(fitting))}" if fitting else ", and none of its kind"
    return f"module {module_path!r} has no {attribute!r}{has}{did_you_mean(attribute, public)}"


def _why(loaded: type[Any], bases: tuple[type[Any], ...]) -> str:
    """Name the bases; a class of the same name from elsewhere (vLLM's) is easily taken for ours."""
    wanted = " or ".join(base.__name__ for base in bases)
    names = [base.__name__ for base in bases]
    twins = [f"{base.__module__}.{base.__qualname__}" for base in loaded.__mro__ if base.__name__ in names]
    return f"kv_api's {wanted} (its base {twins[0]} is another class)" if twins else wanted
