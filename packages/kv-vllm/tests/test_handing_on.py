"""Methods that call those of another object: which they are, and what they pass on."""

from types import FunctionType
from unittest.mock import MagicMock, call

from kv_api import KVConnectorBase_V1, SupportsHMA
from kv_vllm.handing_on import CALLED, CALLED_WITH_GROUPS, hand_the_rest_on, methods_to_inner


def methods_of(cls):
    return {name for name, member in vars(cls).items() if isinstance(member, FunctionType) and name[0] != "_"}


def test_every_method_of_a_connector_object_is_called():
    public = set().union(*(methods_of(cls) for cls in KVConnectorBase_V1.__mro__))
    assert {*CALLED} == public
    assert {*CALLED_WITH_GROUPS} == methods_of(SupportsHMA)


def test_a_call_and_its_answer_are_handed_on():
    front = type("Front", (), methods_to_inner(["one", "other"]))()
    front.inner = MagicMock()
    assert front.one(1, more=2) is front.inner.one.return_value
    assert front.other() is front.inner.other.return_value
    assert front.inner.mock_calls == [call.one(1, more=2), call.other()]
    assert (front.one.__name__, front.other.__name__) == ("one", "other")


def test_what_a_class_leaves_to_its_base_is_handed_on():
    """And no name that this base, of another vLLM perhaps, doesn't have."""

    class Front(KVConnectorBase_V1):
        def request_finished(self, request, block_ids):
            return "its own"

    hand_the_rest_on(Front, KVConnectorBase_V1)
    front = Front(MagicMock(), MagicMock())
    front.inner = MagicMock()
    assert front.request_finished("a", [1]) == "its own"
    assert front.build_connector_meta("output") is front.inner.build_connector_meta.return_value
    assert front.inner.mock_calls == [call.build_connector_meta("output")]
    assert not hasattr(Front, "request_finished_all_groups")
