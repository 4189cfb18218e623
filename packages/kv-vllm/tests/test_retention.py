"""With a vLLM: of windows we store what vLLM's own mask keeps, and what more our own lookup can use."""

from random import Random

import pytest

from kv_api import AttentionKind
from kv_offload.shape.layout import Group, Layout
from kv_offload.shape.reach import Ends, reachable

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]


def vllms_chunks(spec, manager, prompt, alignment, interval, junction):
    """The blocks of a prompt that vLLM's mask keeps."""
    blocks = prompt // spec.block_size
    boundaries = (prompt - 1, *([junction] if junction else []))
    mask = manager.reachable_block_mask(0, blocks, alignment, spec, False, interval, boundaries)
    return {*range(blocks)} if mask is None else {block for block, kept in enumerate(mask) if kept}


def our_chunks(layout, group, prompt, junction):
    ends = Ends(prompt, prompt, junction)
    return {*reachable(layout, group, range(prompt // group.tokens_per_chunk), ends)}


def test_what_vllm_keeps_is_stored_and_little_more():
    pytest.importorskip("vllm")
    torch = pytest.importorskip("torch")
    from vllm.v1.core.single_type_kv_cache_manager import SlidingWindowManager
    from vllm.v1.kv_cache_interface import SlidingWindowSpec

    random, fewer, same = Random(1), 0, 0
    for _ in range(600):
        size, window = random.choice([4, 8]), random.randrange(2, 60)
        per_alignment, prompt = random.choice([1, 2, 4]), random.randrange(2, 400)
        alignment = size * per_alignment
        interval = alignment * random.choice([0, 0, 1, 2, 6])
        junction = random.choice([0, random.randrange(0, prompt) // alignment * alignment])
        spec = SlidingWindowSpec(
            block_size=size, num_kv_heads=1, head_size=8, dtype=torch.float32, sliding_window=window
        )
        groups = (
            Group(0, AttentionKind.FULL, alignment, 1, 1),
            Group(1, AttentionKind.SLIDING_WINDOW, size, 1, 1, window),
        )
        layout = Layout(groups, size, alignment, interval)
        ours = our_chunks(layout, groups[1], prompt, junction)
        theirs = vllms_chunks(spec, SlidingWindowManager, prompt, alignment, interval, junction)
        if prompt % alignment:
            # Behind the last alignment of the prompt there is only what later tokens may make use of.
            end = prompt // alignment * per_alignment
            ours, theirs = ({chunk for chunk in chunks if chunk < end} for chunks in (ours, theirs))
            assert theirs <= ours
            # A prompt may end where a junction is, and be repeated: ours reaches back from the token before, too.
            assert len(ours) - len(theirs) <= (junction > 0), (ours, theirs)
            same += ours == theirs
        fewer += len(ours) < prompt // size
    assert same > 300
    assert fewer > 400
