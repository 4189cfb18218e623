"""``LazyRegistry`` against an obvious model: a dict of registrations and a list of what is installed."""

import builtins
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_api import ConfigError, UnknownNameError
from kv_factory import Offer, Target
from kv_factory.registry import LazyRegistry

NAMES = st.sampled_from(["a", "b", "c"])
CLASSES = st.sampled_from(["KeyError", "OSError", "EOFError"])
PLACES = st.sampled_from(["from one 1.0", "from two 2.0"])
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("register"), NAMES, CLASSES),
        st.tuples(st.just("install"), NAMES, CLASSES, PLACES),
        st.tuples(st.just("uninstall"), PLACES),
        st.tuples(st.just("refresh")),
        st.tuples(st.just("get"), NAMES),
        st.tuples(st.just("names")),
        st.tuples(st.just("isolate")),
        st.tuples(st.just("leave")),
    ),
    max_size=40,
)


class Model:
    """What a registry should do, said as plainly as possible."""

    def __init__(self, installed: list[Offer]) -> None:
        self.installed = installed
        self.registered: dict[str, str] = {}
        self.seen: list[Offer] | None = None
        self.searches = 0

    def search(self) -> list[Offer]:
        if self.seen is None:
            self.seen = list(self.installed)
            self.searches += 1
        return self.seen

    def register(self, name: str, attribute: str) -> object:
        if name in self.registered:
            return ConfigError
        self.registered[name] = attribute
        return None

    def get(self, name: str) -> object:
        if name in self.registered:
            return getattr(builtins, self.registered[name])
        offers = {offer for offer in self.search() if offer.name == name}
        if not offers:
            return UnknownNameError
        return getattr(builtins, offers.pop().target.attribute) if len(offers) == 1 else "more than once"

    def names(self) -> object:
        return sorted({*self.registered, *(offer.name for offer in self.search())})


def outcome(action: Any, *arguments: Any) -> object:
    """What a call returns, or the kind of error it raises."""
    try:
        result = action(*arguments)
    except UnknownNameError:
        return UnknownNameError
    except ConfigError as error:
        return "more than once" if "more than once" in str(error) else ConfigError
    return getattr(result, "loaded", result)


@given(ACTIONS)
def test_behaves_like_a_dict_and_a_list(actions: list[tuple[str, ...]]) -> None:
    installed: list[Offer] = []
    searches: list[str] = []

    def search(group: str) -> list[Offer]:
        searches.append(group)
        return list(installed)

    registry = LazyRegistry("thing", "things", (Exception,), {}, search=search)
    models, isolations, left_searches = [Model(installed)], [], 0
    for verb, *words in actions:
        model = models[-1]
        if verb == "register":
            assert outcome(registry.register, words[0], "builtins", words[1]) == model.register(*words)
        elif verb == "install":
            installed.append(Offer(words[0], Target("builtins", words[1]), words[2]))
        elif verb == "uninstall":
            installed[:] = [offer for offer in installed if offer.origin != words[0]]
        elif verb == "refresh":
            registry.refresh()
            model.seen = None
        elif verb == "get":
            assert outcome(registry.get, *words) == model.get(*words)
        elif verb == "names":
            assert outcome(registry.names) == model.names()
        elif verb == "isolate":
            isolations.append(registry.isolated())
            isolations[-1].__enter__()
            models.append(Model(installed))
        elif isolations:
            isolations.pop().__exit__(None, None, None)
            left_searches += models.pop().searches
        registry.check()
        assert len(searches) == left_searches + sum(model.searches for model in models)
    while isolations:
        isolations.pop().__exit__(None, None, None)
    registry.check()


def test_a_registration_settles_a_clash() -> None:
    offers = [Offer("a", Target("builtins", "KeyError"), f"from {name}") for name in ("one 1.0", "two 2.0")]
    registry = LazyRegistry("thing", "things", (Exception,), {}, search=lambda group: offers)
    with pytest.raises(ConfigError) as refused:
        registry.get("a")
    assert str(refused.value) == (
        "thing 'a' is offered more than once: "
        "builtins:KeyError (from one 1.0) and builtins:KeyError (from two 2.0); "
        "uninstall one, or register the one you want"
    )
    registry.register("a", "builtins", "OSError")
    assert registry.get("a").loaded is OSError


def test_the_very_same_offer_counts_once() -> None:
    offer = Offer("a", Target("builtins", "KeyError"), "from one 1.0")
    registry = LazyRegistry("thing", "things", (Exception,), {}, search=lambda group: [offer, offer])
    assert registry.get("a").loaded is KeyError


def test_a_name_that_is_known_is_meant_before_one_that_is_not_installed() -> None:
    registry = LazyRegistry("thing", "things", (Exception,), {"Apple": "kv-apple"}, search=lambda group: [])
    with pytest.raises(ConfigError) as refused:
        registry.get("Aple")
    assert str(refused.value) == (
        "unknown thing 'Aple'; known: none; "
        "did you mean 'Apple'? It is in the package kv-apple, which is not installed"
    )
    registry.register("Apples", "builtins", "OSError")
    with pytest.raises(ConfigError) as refused:
        registry.get("Aple")
    assert str(refused.value) == "unknown thing 'Aple'; known: Apples; did you mean 'Apples'?"


def test_nobody_offers_what_is_not_known() -> None:
    registry = LazyRegistry("thing", "things", (Exception,), {"Apple": "kv-apple"}, search=lambda group: [])
    assert registry.offers("Apple") == ()


def test_a_clash_is_told_in_the_order_of_names() -> None:
    offers = [Offer("a", Target("builtins", name), f"from {name}") for name in ("OSError", "KeyError")]
    registry = LazyRegistry("thing", "things", (Exception,), {})
    with registry.isolated(installed=offers):
        assert registry.offers("a") == tuple(offers[::-1])
        registry.check()


def test_what_is_given_for_installed_is_all_there_is() -> None:
    real = [Offer("a", Target("builtins", "KeyError"), "from one 1.0")]
    registry = LazyRegistry("thing", "things", (Exception,), {}, search=lambda group: real)
    assert registry.names() == ["a"]
    with registry.isolated(installed=[Offer("b", Target("builtins", "OSError"), "from a test")]):
        assert registry.names() == ["b"]
        with registry.isolated():
            assert registry.names() == ["a"]
        registry.refresh()
        assert registry.names() == ["b"]
    assert registry.names() == ["a"]


def test_nothing_is_searched_for_a_name_that_was_registered() -> None:
    searches: list[str] = []
    registry = LazyRegistry("thing", "things", (Exception,), {}, search=lambda group: searches.append(group) or [])
    registry.register("a", "builtins", "KeyError")
    registry.get("a")
    assert searches == []
    registry.names()
    registry.names()
    assert searches == ["things"]


def test_check_notices_a_wrong_table() -> None:
    registry = LazyRegistry("thing", "things", (Exception,), {}, search=lambda group: [])
    registry._registered["a"] = Offer("b", Target("builtins", "KeyError"), "registered")
    with pytest.raises(AssertionError, match="stands under 'a'"):
        registry.check()
    registry._registered.clear()
    registry._installed = {"a": ()}
    with pytest.raises(AssertionError, match="'a' has no entry point"):
        registry.check()


OLD, NEW = (Offer(name, Target("builtins", "KeyError"), "from one 1.0") for name in ("old", "new"))


def test_what_stands_for_entry_points_may_be_asked_for_again() -> None:
    registry = LazyRegistry("thing", "things", (Exception,), {})
    with registry.isolated(installed=iter([OLD])):
        for _ in range(2):
            assert registry.names() == ["old"]
            registry.refresh()


@pytest.mark.parametrize("refreshes", [0, 1])
@pytest.mark.parametrize("begins_within", [False, True])
def test_a_search_that_an_isolation_overtakes_is_not_kept(begins_within: bool, refreshes: int) -> None:
    """One that begins before it and ends within, and one that begins within and ends after it."""
    overtakes, answers = ExitStack(), [[OLD], [NEW]]

    def search(group: str) -> list[Offer]:
        if len(answers) > 1:
            overtakes.close() if begins_within else overtakes.enter_context(registry.isolated())
        return answers.pop(0)

    registry = LazyRegistry("thing", "things", (Exception,), {}, search=search)
    for _ in range(refreshes):
        registry.refresh()
    if begins_within:
        overtakes.enter_context(registry.isolated())
    assert [registry.names(), registry.names()] == [["old"], ["new"]]
    overtakes.close()
