"""What tells two models of one path apart."""

from functools import partial
from types import SimpleNamespace

import pytest

from kv_api.model_variant import variant_of


def overrides(config):
    return config


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ""),
        ({"revision": None, "hf_overrides": {}}, ""),
        ({"revision": "", "hf_overrides": None}, ""),
        ({"revision": "v2"}, "revision=v2"),
        ({"hf_overrides": {"b": 1, "a": {"d": 2, "c": None}}}, 'hf_overrides={"a": {"c": null, "d": 2}, "b": 1}'),
        ({"revision": "v2", "hf_overrides": {"a": 1}}, 'revision=v2, hf_overrides={"a": 1}'),
        ({"hf_overrides": {"a": 1 + 2j}}, 'hf_overrides={"a": "(1+2j)"}'),
        ({"hf_overrides": overrides}, "hf_overrides=overrides"),
        ({"hf_overrides": partial(overrides)}, "hf_overrides=partial"),
    ],
)
def test_revision_and_overrides(given, expected):
    assert variant_of(SimpleNamespace(**given)) == expected


def test_no_model_has_no_variant():
    assert variant_of(None) == ""
