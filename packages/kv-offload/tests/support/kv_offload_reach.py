"""Which chunks of a window are worth storing, asked of each chunk by itself."""

from kv_offload.shape.reach import replay_boundary


def is_reachable(layout, group, end, ends):
    """Whether a lookup could ever need the window's chunk that ends at ``end``."""
    if not group.has_window or group.is_draft or group.restart_tokens:
        return True
    start = end - group.tokens_per_chunk
    if layout.retention_tokens is not None:
        lasts = (ends.prompt, ends.shared)
        boundaries = [replay_boundary(layout, last, limit) for last in lasts for limit in (last - 1, last)]
        if layout.retention_tokens:
            boundaries.append((start // layout.retention_tokens + 1) * layout.retention_tokens)
        return any(start < boundary and group.first_needed(boundary) < end for boundary in boundaries)
    sizes = {other.tokens_per_chunk for other in layout.groups if other.reads_all}
    if len(sizes) != 1:
        return True
    (size,) = sizes
    chunks = {other.tokens_per_chunk for other in layout.groups}
    if any(size % chunk and chunk % size for chunk in chunks):
        return True
    has_drafts = any(other.is_draft for other in layout.groups)
    repeats = [last - 1 for last in (ends.prompt, ends.known) if last > start + 1]
    return any(group.first_needed(boundary) < end for boundary in [-(-end // size) * size - has_drafts, *repeats])
