"""``LazyRegistry``: names that stand for classes nobody has imported yet.

Theory of operation. A name is known because somebody registered it, or because an installed distribution offers
it as an entry point. What was registered wins. Entry points are looked for when a name was not registered, and
remembered until ``refresh``. A lookup imports the class's module; classes are not remembered, ``sys.modules``
does that.

Threads. One lock guards the two tables, and foreign code never runs under it: not an import, not the search for
entry points. So a module may use the registry while it is being imported, in any number of threads, without a
deadlock; that it runs only once is the promise of Python's import system.

Invariants (``check``): every offer stands under its own name; a registered one has a module and a class; the entry
points of a name are in order and there is at least one.
"""

import threading  # noqa: TID251 - engines create connectors in several threads
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kv_api import ConfigError, UnknownNameError
from kv_api.errors import nearest_name, unknown_name
from kv_factory.importing import Found, Offer, Target, import_class
from kv_factory.installed import forget_files, installed_offers
from kv_factory.module_paths import module_paths_allowed, require_module_paths


class LazyRegistry:
    """Names of one kind of class.

    ``kind`` is the word for such a class in errors, ``group`` the group of its entry points. Every class derives
    from one of ``bases``. ``packages`` maps well-known names to the packages that have them, which may not be
    installed.
    """

    def __init__(
        self,
        kind: str,
        group: str,
        bases: tuple[type[Any], ...],
        packages: Mapping[str, str],
        *,
        search: Callable[[str], Iterable[Offer]] = installed_offers,
    ) -> None:
        self.kind = kind
        self.group = group
        self.packages = packages
        self._bases = bases
        self._search = self._real_search = search
        self._lock = threading.Lock()
        self._registered: dict[str, Offer] = {}
        self._installed: dict[str, tuple[Offer, ...]] | None = None
        self._generation = 0  # a search that began before the last refresh is out of date

    # -- what is known -------------------------------------------------------------------------

    def register(self, name: str, module_path: str, class_name: str) -> None:
        """Make ``name`` stand for a class; nothing is imported. A second registration is an error."""
        given: dict[str, object] = {"name": name, "module_path": module_path, "class_name": class_name}
        for word, value in given.items():
            if not isinstance(value, str) or not value:
                raise ConfigError(f"{self.kind} {name!r}: {word} must be a non-empty string, got {value!r}")
        offer = Offer(name, Target(module_path, class_name), "registered")
        with self._lock:
            first = self._registered.setdefault(name, offer)
        if first is not offer:
            raise ConfigError(
                f"{self.kind} {name!r} is already registered as {first.target}; can't register {offer.target} too"
            )

    def offers(self, name: str) -> tuple[Offer, ...]:
        """The offers of ``name``: only the registration if there is one, else every entry point.

        Several are a clash.
        """
        with self._lock:
            registered = self._registered.get(name)
        return (registered,) if registered else self._entry_points().get(name, ())

    def names(self) -> list[str]:
        """Every known name, in order."""
        installed = self._entry_points()
        with self._lock:
            return sorted({*self._registered, *installed})

    def refresh(self) -> None:
        """Look for entry points again at the next lookup, because something was installed."""
        forget_files()
        with self._lock:
            self._installed = None
            self._generation += 1

    def _entry_points(self) -> Mapping[str, tuple[Offer, ...]]:
        with self._lock:
            known, search, generation = self._installed, self._search, self._generation
        if known is not None:
            return known
        found = by_name(search(self.group))
        with self._lock:
            if self._generation == generation:
                self._installed = found
        return found

    # -- from a name to a class ----------------------------------------------------------------

    def get(self, name: str, *, hint: str = "") -> Found:
        """The class of a known name. ``hint`` is added to the error when it is not known."""
        offers = self.offers(name)
        if not offers:
            raise UnknownNameError(self._unknown(name, hint))
        if len(offers) > 1:
            claims = " and ".join(f"{offer.target} ({offer.origin})" for offer in offers)
            raise ConfigError(
                f"{self.kind} {name!r} is offered more than once: {claims}; "
                "uninstall one, or register the one you want"
            )
        return import_class(self.kind, offers[0], self._bases)

    def get_from_module(self, name: str, module_path: str, key: str) -> Found:
        """The class ``name`` of a module that a configuration names under ``key``, if that is allowed."""
        if not module_path:
            raise ConfigError(f"{key}: expected the name of a module or nothing, got an empty string")
        require_module_paths(f"{self.kind} {name!r}", key, module_path)
        return import_class(self.kind, Offer(name, Target(module_path, name), f"from {key}"), self._bases)

    def get_either(self, name: str, module_path: str | None, key: str, *, prefer_module: bool) -> Found:
        """The class of a name for which a configuration may also name a module.

        With ``prefer_module`` the module is used first, otherwise only for a name that is not known.
        """
        if module_path is not None and (prefer_module or not module_path or not self.offers(name)):
            return self.get_from_module(name, module_path, key)
        hint = f"{key} names the module of one that is not registered" if module_paths_allowed() else ""
        return self.get(name, hint=hint)

    def _unknown(self, name: str, hint: str) -> str:
        if name in self.packages:
            return f"{self.kind} {name!r} is not installed: install the package {self.packages[name]}"
        names = self.names()
        nearest = nearest_name(name, self.packages)
        if nearest is not None and nearest_name(name, names) is None:
            package = self.packages[nearest]
            hint = f"did you mean {nearest!r}? It is in the package {package}, which is not installed"
        return unknown_name(self.kind, name, names, hint=hint)

    # -- for tests -----------------------------------------------------------------------------

    @contextmanager
    def isolated(self, installed: Iterable[Offer] | None = None) -> Iterator[None]:
        """Begin with nothing registered, and put everything back at the end.

        Entry points are looked for afresh or, when ``installed`` is given, are those and no others. It is for one
        test at a time: all threads see it.
        """
        offers = None if installed is None else tuple(installed)
        with self._lock:
            before = self._registered, self._installed, self._search
            self._registered, self._installed = {}, None
            self._generation += 1
            self._search = self._real_search if offers is None else lambda group: offers
        try:
            yield
        finally:
            with self._lock:
                self._registered, self._installed, self._search = before
                self._generation += 1

    def check(self) -> None:
        """Recount the tables."""
        with self._lock:
            registered, installed = dict(self._registered), dict(self._installed or {})
        for name, offer in registered.items():
            assert offer.name == name, f"{offer} stands under {name!r}"
            assert offer.target.module, f"{offer} has no module"
            assert offer.target.attribute, f"{offer} has no class"
        for name, offers in installed.items():
            assert offers, f"{name!r} has no entry point"
            assert list(offers) == sorted(offers), f"the entry points of {name!r} are out of order: {offers}"
            assert {offer.name for offer in offers} == {name}, f"{offers} stand under {name!r}"


def by_name(offers: Iterable[Offer]) -> dict[str, tuple[Offer, ...]]:
    """Offers of one name together, in order; the very same offer counts once."""
    table: dict[str, tuple[Offer, ...]] = {}
    for offer in sorted(offers):
        others = table.get(offer.name, ())
        if offer not in others:
            table[offer.name] = (*others, offer)
    return table
