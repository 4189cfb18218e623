"""Many threads, one import; and no deadlock when a module uses the factory while it is imported."""

import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kv_api import ConfigError
from kv_factory import (
    KVConnectorFactory,
    Offer,
    Target,
    ensure_kv_transfer_initialized,
    ensure_kv_transfer_shutdown,
    get_kv_transfer_group,
    has_kv_transfer_group,
)
from kv_factory.registry import LazyRegistry
from kv_factory.transfer_state import isolated_kv_transfer

PATIENCE_SECONDS = 30


def run(*jobs: Callable[[], Any]) -> list[Any]:
    """Run jobs in threads that begin together; what each returned. Threads that don't end are a failure."""
    results: list[Any] = [None] * len(jobs)
    begin = threading.Barrier(len(jobs))

    def work(index: int) -> None:
        begin.wait(PATIENCE_SECONDS)
        try:
            results[index] = jobs[index]()
        except Exception as error:  # noqa: BLE001 - it is a result that tests look at
            results[index] = error

    threads = [threading.Thread(target=work, args=(index,), daemon=True) for index in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert not any(thread.is_alive() for thread in threads), "deadlock"
    return results


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module where the modules of a test leave and find things."""
    module: Any = ModuleType("kvf_hub")
    module.runs = []
    monkeypatch.setitem(sys.modules, "kvf_hub", module)
    return module


def test_many_threads_import_a_module_once(folder: Path, zoo: str, hub: Any) -> None:
    hub.all_asked = threading.Barrier(2)
    (folder / "kvf_slow.py").write_text(
        f"import kvf_hub\nkvf_hub.runs.append(1)\nkvf_hub.all_asked.wait({PATIENCE_SECONDS})\n"
        f"from {zoo} import Two as Slow\n"
    )
    KVConnectorFactory.register_connector("Slow", "kvf_slow", "Slow")
    asked = threading.Semaphore(0)

    def look_up() -> type[Any]:
        asked.release()
        return KVConnectorFactory.get_connector_class_by_name("Slow")

    def let_go() -> None:
        for _ in range(16):
            assert asked.acquire(timeout=PATIENCE_SECONDS)
        hub.all_asked.wait(PATIENCE_SECONDS)

    *found, _ = run(*[look_up] * 16, let_go)
    assert hub.runs == [1]
    assert found == [sys.modules["kvf_slow"].Slow] * 16


def test_a_module_may_use_the_registry_while_it_is_imported(folder: Path, hub: Any) -> None:
    """One thread imports the module, which looks up a name; another looks up the module's own name meanwhile.

    If the registry held a lock while it waits for the import, the import would wait for the registry. The registry
    is the test's own: one that is stuck would block every test after this one.
    """
    hub.registry = LazyRegistry("thing", "things", (Exception,), {}, search=lambda group: [])
    hub.imported, hub.waited_for, looking_up = threading.Event(), threading.Event(), []
    (folder / "kvf_user.py").write_text(
        "import kvf_hub\n"
        "kvf_hub.imported.set()\n"
        f"assert kvf_hub.waited_for.wait({PATIENCE_SECONDS})\n"
        "kvf_hub.registry.register('Helper', 'builtins', 'KeyError')\n"
        "class User(kvf_hub.registry.get('Helper').loaded): ...\n"
    )
    hub.registry.register("User", "kvf_user", "User")

    def imports_it() -> None:
        __import__("kvf_user")

    def looks_it_up() -> str:
        assert hub.imported.wait(PATIENCE_SECONDS)
        looking_up.append(threading.get_ident())
        return hub.registry.get("User").loaded.__name__

    def lets_it_go_on() -> None:
        assert hub.imported.wait(PATIENCE_SECONDS)
        while not (looking_up and inside_import(looking_up[0])):
            hub.waited_for.wait(0.001)
        hub.waited_for.set()

    assert run(imports_it, looks_it_up, lets_it_go_on) == [None, "User", None]


def inside_import(thread: int) -> bool:
    """Whether a thread waits in Python's import system."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if "importlib._bootstrap" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


def test_one_of_many_registrations_succeeds(zoo: str) -> None:
    def register() -> None:
        KVConnectorFactory.register_connector("A", zoo, "Two")

    results = run(*[register] * 16)
    assert results.count(None) == 1
    assert all(isinstance(result, ConfigError) for result in results if result is not None)


def test_a_search_that_a_refresh_overtakes_is_not_kept() -> None:
    began, refreshed = threading.Event(), threading.Event()
    answers = [[Offer("old", Target("builtins", "KeyError"), "from one 1.0")], []]

    def search(group: str) -> list[Offer]:
        answer = answers.pop(0)
        if answer:
            began.set()
            assert refreshed.wait(PATIENCE_SECONDS)
        return answer

    registry = LazyRegistry("thing", "things", (Exception,), {}, search=search)
    registry.refresh()  # nor is this the first

    def refresh() -> None:
        assert began.wait(PATIENCE_SECONDS)
        registry.refresh()
        refreshed.set()

    assert run(registry.names, refresh) == [["old"], None]
    assert registry.names() == []


def test_names_are_only_looked_up_by_who_has_the_lock() -> None:
    class Registered(dict[str, Offer]):
        def get(self, name: str, default: Any = None) -> Any:
            touched.add(("get", registry._lock.locked()))
            return super().get(name, default)

        def setdefault(self, name: str, offer: Any = None) -> Any:
            touched.add(("register", registry._lock.locked()))
            return super().setdefault(name, offer)

        def __iter__(self) -> Iterator[str]:
            touched.add(("list", registry._lock.locked()))
            return super().__iter__()

    touched: set[tuple[str, bool]] = set()
    registry = LazyRegistry("thing", "things", (Exception,), {}, search=lambda group: [])
    registry._registered = Registered()
    registry.register("Error", "builtins", "ValueError")
    assert registry.offers("Error") == (Offer("Error", Target("builtins", "ValueError"), "registered"),)
    assert registry.names() == ["Error"]
    assert touched == {(name, True) for name in ("register", "get", "list")}


def test_entry_points_are_only_kept_and_forgotten_by_who_has_the_lock() -> None:
    class Watched(LazyRegistry):
        def __getattribute__(self, name: str) -> Any:
            if name in guarded:
                touched.add((f"read {name}", self._lock.locked()))
            return super().__getattribute__(name)

        def __setattr__(self, name: str, value: Any) -> None:
            if name in guarded:
                touched.add((f"write {name}", self._lock.locked()))
            super().__setattr__(name, value)

    guarded: set[str] = set()
    touched: set[tuple[str, bool]] = set()
    registry = Watched("thing", "things", (Exception,), {}, search=lambda group: [])
    guarded |= {"_installed", "_generation"}
    registry.refresh()
    assert registry.names() == []
    assert touched == {(f"{how} {name}", True) for how in ("read", "write") for name in guarded}


def test_a_process_gets_one_connector(folder: Path, zoo: str, hub: Any, engine: Callable[..., Any]) -> None:
    (folder / "kvf_counted.py").write_text(
        f"import kvf_hub, {zoo}\n"
        f"class Counted({zoo}.Two):\n"
        "    def __init__(self, vllm_config, role):\n"
        "        super().__init__(vllm_config, role)\n"
        "        kvf_hub.runs.append(self)\n"
        "        kvf_hub.others.wait(0.2)\n"
    )
    hub.others = threading.Event()
    KVConnectorFactory.register_connector("Counted", "kvf_counted", "Counted")
    config = engine("Counted")

    def initialise() -> object:
        ensure_kv_transfer_initialized(config)
        return get_kv_transfer_group()

    results = run(*[initialise] * 8)
    assert len(hub.runs) == 1
    assert results == hub.runs * 8


def test_who_begins_without_a_connector_waits_for_one_that_is_being_created(
    folder: Path, zoo: str, hub: Any, engine: Callable[..., Any]
) -> None:
    (folder / "kvf_slow.py").write_text(
        f"import kvf_hub, {zoo}\n"
        f"class Slow({zoo}.Two):\n"
        "    def __init__(self, vllm_config, role):\n"
        "        super().__init__(vllm_config, role)\n"
        "        kvf_hub.begun.set()\n"
        "        kvf_hub.others.wait(0.2)\n"
        "        kvf_hub.is_created = True\n"
    )
    hub.begun, hub.others, hub.is_created = threading.Event(), threading.Event(), False
    KVConnectorFactory.register_connector("Slow", "kvf_slow", "Slow")

    def begin_without() -> tuple[bool, bool]:
        assert hub.begun.wait(PATIENCE_SECONDS)
        with isolated_kv_transfer():
            return hub.is_created, has_kv_transfer_group()

    assert run(partial(ensure_kv_transfer_initialized, engine("Slow")), begin_without) == [None, (True, False)]
    assert has_kv_transfer_group(), "it is there again"


def test_who_shuts_a_connector_down_waits_for_who_does_so(
    folder: Path, zoo: str, hub: Any, engine: Callable[..., Any]
) -> None:
    (folder / "kvf_closing.py").write_text(
        f"import kvf_hub, {zoo}\n"
        f"class Closing({zoo}.Two):\n"
        "    def shutdown(self):\n"
        "        kvf_hub.runs.append(self)\n"
        "        kvf_hub.begun.set()\n"
        "        kvf_hub.others.wait(0.2)\n"
        "        kvf_hub.is_shut_down = True\n"
    )
    hub.begun, hub.others, hub.is_shut_down = threading.Event(), threading.Event(), False
    KVConnectorFactory.register_connector("Closing", "kvf_closing", "Closing")
    ensure_kv_transfer_initialized(engine("Closing"))

    def wait_and_shut_down() -> bool:
        assert hub.begun.wait(PATIENCE_SECONDS)
        ensure_kv_transfer_shutdown()
        return bool(hub.is_shut_down)

    assert run(ensure_kv_transfer_shutdown, *[wait_and_shut_down] * 3) == [None, True, True, True]
    assert len(hub.runs) == 1
