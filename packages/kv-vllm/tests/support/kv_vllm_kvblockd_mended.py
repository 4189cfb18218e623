"""vllm-kvblockd's connector without what it was found to get wrong, so that a hunt finds more.

Each class does without one mistake; ``Mended`` is all of them.
"""

from kv_vllm_kvblockd import OnCpu


class KeepsNothingWrong(OnCpu):
    """What was computed from a block whose load failed is not stored."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._wrong = set()
        """Blocks whose load failed, and those computed from them, until they are computed anew."""

    def start_load_kv(self, forward_context, **kwargs):
        super().start_load_kv(forward_context, **kwargs)
        self._wrong |= self._load_errors
        for row in self._get_connector_metadata().requests:
            first, count = row.load_start_block, row.num_load_blocks
            self._wrong -= {*row.block_ids[first : first + count]} - self._load_errors

    def wait_for_save(self):
        rows = self._get_connector_metadata().requests
        for row in rows:
            computed = {*row.block_ids[row.store_start_block : row.store_end_block]}
            if self._wrong & {*row.block_ids[: row.store_start_block]}:
                self._wrong |= computed
                row.store_end_block = row.store_start_block
            else:
                self._wrong -= computed
        super().wait_for_save()


class ForgetsWhoEnded(OnCpu):
    """A worker forgets requests that have ended: another one may have the same name."""

    def get_finished(self, finished_req_ids):
        for name in finished_req_ids:
            self._chain_cache.pop(name, None)
            self._store_holes.pop(name, None)
        return super().get_finished(finished_req_ids)


class Mended(KeepsNothingWrong, ForgetsWhoEnded):
    """Without all of them."""
