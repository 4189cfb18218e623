"""``isolated``: one test's own registries, process-wide connector and permission to use module paths."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from kv_factory.connectors import KVConnectorFactory
from kv_factory.importing import Offer
from kv_factory.module_paths import isolated_module_paths
from kv_factory.specs import OffloadingSpecFactory
from kv_factory.transfer_state import isolated_kv_transfer


@contextmanager
def isolated(connectors: Iterable[Offer] | None = None, specs: Iterable[Offer] | None = None) -> Iterator[None]:
    """Begin with nothing registered and no connector, and put everything back at the end.

    ``connectors`` and ``specs`` stand for the entry points of installed packages; where they are not given, the
    real ones are looked up. It is for one test at a time: all threads see it.
    """
    with ExitStack() as stack:
        stack.enter_context(KVConnectorFactory.isolated(connectors))
        stack.enter_context(OffloadingSpecFactory.isolated(specs))
        stack.enter_context(isolated_module_paths())
        stack.enter_context(isolated_kv_transfer())
        yield
