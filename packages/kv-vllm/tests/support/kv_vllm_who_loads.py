"""What connectors of others lack that free blocks twice, of a request that ends while it is loaded: who loads."""


class KnowsWhoLoads:
    """Stands before a connector. ``_loading`` are being loaded; ``held``, in the metadata, are being stored."""

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        self._loading, self._held = set(), set()

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        if num_external_tokens:
            self._loading.add(request.request_id)

    def update_connector_output(self, connector_output):
        super().update_connector_output(connector_output)
        self._loading.difference_update(connector_output.finished_recving or ())

    def build_connector_meta(self, scheduler_output):
        meta = super().build_connector_meta(scheduler_output)
        meta.held, self._held = self._held, set()
        return meta
