"""``OffloadingSpecFactory``: from the connector's extra config to an offloading spec.

``spec_name`` is looked up among the known names first; only an unknown name is taken from ``spec_module_path``.
"""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from enum import Enum
from typing import Any, ClassVar, Final, cast, overload

from kv_api import KVCacheConfig, OffloadingConfig, OffloadingSpec, VllmConfig
from kv_factory import fields
from kv_factory.building import Call, build, call
from kv_factory.importing import Found, Offer
from kv_factory.log import info
from kv_factory.module_paths import limit_module_paths
from kv_factory.registry import LazyRegistry

DEFAULT_SPEC = "CPUOffloadingSpec"


class _NotGiven(Enum):
    """Tells the one-argument form from a ``kv_cache_config`` of None."""

    NOT_GIVEN = 0


_NOT_GIVEN: Final = _NotGiven.NOT_GIVEN


class OffloadingSpecFactory:
    """The offloading specs that are known by name, and how they are made. All of it is on the class."""

    _registry: ClassVar[LazyRegistry] = LazyRegistry(
        "offloading spec",
        "kv_offload_specs",
        (OffloadingSpec,),
        {DEFAULT_SPEC: "kv-offload-cpu", "FileOffloadingSpec": "kv-offload-file"},
    )

    @classmethod
    def register_spec(cls, name: str, module_path: str, class_name: str) -> None:
        """Make ``name`` stand for a class, whose module is imported at first use.

        Registering a name twice is an error.
        """
        cls._registry.register(name, module_path, class_name)

    @classmethod
    def refresh_entry_points(cls) -> None:
        """Look again, at the next lookup, for what installed packages offer."""
        cls._registry.refresh()

    @classmethod
    def get_spec_cls(
        cls,
        extra_config: Mapping[str, Any] | OffloadingConfig | VllmConfig,
        *,
        allow_module_paths: bool = True,
    ) -> type[OffloadingSpec]:
        """The class that extra config names; it is given directly, or within a configuration."""
        with limit_module_paths(allow_module_paths=allow_module_paths):
            return cls._find(fields.extra_config(extra_config)).loaded

    @overload
    @classmethod
    def create_spec(cls, config: OffloadingConfig, *, allow_module_paths: bool = True) -> OffloadingSpec: ...

    @overload
    @classmethod
    def create_spec(
        cls, config: VllmConfig, kv_cache_config: KVCacheConfig | None, *, allow_module_paths: bool = True
    ) -> OffloadingSpec: ...

    @classmethod
    def create_spec(
        cls,
        config: OffloadingConfig | VllmConfig,
        kv_cache_config: KVCacheConfig | _NotGiven | None = _NOT_GIVEN,
        *,
        allow_module_paths: bool = True,
    ) -> OffloadingSpec:
        """Make a spec of an ``OffloadingConfig``, or of an engine's configuration and ``kv_cache_config``."""
        way: Call
        if kv_cache_config is not _NOT_GIVEN:
            extra = fields.engine_extra_config(config)
            way = call("(config, kv_cache_config)", config, kv_cache_config)
        else:
            extra = fields.offloading_extra_config(config)
            way = call("(offloading_config)", config)
        with limit_module_paths(allow_module_paths=allow_module_paths):
            found = cls._find(extra)
            info("creating offloading spec %s (%s)", found.loaded.__name__, found.loaded.__module__)
            return cast(OffloadingSpec, build(found.place, found.loaded, way))

    @classmethod
    def isolated(cls, installed: Iterable[Offer] | None = None) -> AbstractContextManager[None]:
        """Begin with nothing registered, and restore all at the end; ``installed`` replaces all entry points."""
        return cls._registry.isolated(installed)

    @classmethod
    def _find(cls, extra: Mapping[str, Any]) -> Found:
        name, path = fields.spec_name(extra, DEFAULT_SPEC), fields.spec_module_path(extra)
        return cls._registry.get_either(name, path, "spec_module_path", prefer_module=False)
