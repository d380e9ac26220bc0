"""The contract of equality with the reference: any history of operations gives the same results."""

import itertools
from typing import Any, ClassVar

from hypothesis.stateful import run_state_machine_as_test

from helix_agents.testing.contracts.store_handles import OpenStore, StoreContract
from helix_agents.testing.model import StoreMachine, machine_settings
from helix_agents.testing.requirements.registry import proves


class HistoriesContract(StoreContract):
    """Random histories, compared step by step."""

    most_histories: ClassVar[int | None] = None
    """For you to set if each operation is slow: how many histories are enough for one run of the tests."""

    @proves("store.like-the-reference")
    def test_any_history_looks_as_on_the_reference(self, open_store: OpenStore) -> None:
        examples = itertools.count(1)

        class Machine(StoreMachine):
            def open_tested(self, **options: Any) -> Any:
                # Its own namespace makes every history start empty, on one set of data.
                return open_store(namespace=f"history-{next(examples)}", **options)

        run_state_machine_as_test(Machine, settings=machine_settings(self.most_histories))
