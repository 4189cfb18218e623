"""What is said stays as it was said: between steps, halves and threads."""

from dataclasses import FrozenInstanceError, fields

import pytest

from kv_p2p.first import options as first
from kv_p2p.pulling import options
from kv_p2p.pulling.carrier import Slot
from kv_p2p.pulling.groups import Group
from kv_p2p.pulling.metadata import Hold, Pull, Source
from kv_p2p.pulling.ticket import Address, Shape, Ticket


@pytest.mark.parametrize(
    "kind", [first.Options, options.Options, Slot, Group, Hold, Pull, Source, Address, Shape, Ticket], ids=repr
)
def test_values_do_not_change(kind):
    value = object.__new__(kind)
    for field in fields(kind):
        with pytest.raises(FrozenInstanceError, match=field.name):
            setattr(value, field.name, None)
