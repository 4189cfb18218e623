"""Names that a package imports when they are first used."""

import sys
from types import ModuleType
from typing import Any

import pytest

from kv_api.exports import imported_later


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names of one that exports `Later`, which is in a module, and `Now`."""
    module = ModuleType("where_it_is")
    monkeypatch.setitem(sys.modules, "where_it_is", module)
    vars(module)["Later"] = object()
    return {"__name__": "some_package", "__all__": ["Later", "Now"], "Now": object()}


def test_a_name_is_looked_for_once(package: dict[str, Any]) -> None:
    find = imported_later(package, {"Later": "where_it_is"})
    assert "Later" not in package
    assert find("Later") is vars(sys.modules["where_it_is"])["Later"] is package["Later"]


@pytest.mark.parametrize(
    ("more", "name", "choices"),
    [
        (0, "Latex", "; it exports Later, Now"),
        (18, "Latex", f"; it exports Later, Now{', other' * 18}"),
        (19, "Latex", "; did you mean 'Later'?"),
        (19, "__path__", ""),
    ],
)
def test_a_name_that_is_not_there_is_refused(package: dict[str, Any], more: int, name: str, choices: str) -> None:
    package["__all__"] += ["other"] * more
    with pytest.raises(AttributeError) as refused:
        imported_later(package, {"Later": "where_it_is"})(name)
    assert str(refused.value) == f"module 'some_package' has no attribute {name!r}{choices}"
    assert name not in package
