"""Where the real bindings have the numbers of a copy of rectangles. ``nox -s kernel`` runs it; it needs no GPU.

It isn't named like a test file, so that no other run collects it.
"""

from cuda.bindings import driver

from kv_offload_cpu.copy.cuda.batch_call import source_orders
from kv_offload_cpu.copy.cuda.methods.batch import SourceOrder
from kv_offload_cpu.copy.cuda.strided_call import _MARKS, _marked


def test_an_operation_is_of_the_form_that_the_driver_reads():
    target, target_pitch, source, source_pitch, width, height = _MARKS
    for order, value in ((SourceOrder.STREAM, 1), (SourceOrder.ANY, 3)):
        words = _marked(driver, source_orders(driver)[order]).tolist()
        assert words[:5] == [1, source, source_pitch, 0, 0]
        assert words[5:10] == [1, target, target_pitch, 0, 0]
        assert words[10:] == [width, height, 1, value]
