"""The contract of equality with the reference: any history of operations gives the same answers."""

import itertools
from typing import Any, ClassVar

from hypothesis.stateful import run_state_machine_as_test

from helix_agents.testing.contracts.store_handles import OpenStore, StoreContract
from helix_agents.testing.model import StoreMachine, machine_settings
from helix_agents.testing.requirements.registry import proves


class HistoriesContract(StoreContract):
    """Random histories, compared step by step."""

    most_histories: ClassVar[int | None] = None
    """Yours to set where each operation is slow: how many histories are enough for one run of the tests."""

    @proves("store.like-the-reference")
    def test_any_history_looks_as_on_the_reference(self, open_store: OpenStore) -> None:
        examples = itertools.count(1)

        class Machine(StoreMachine):
            def open_tested(self, **options: Any) -> Any:
                # A namespace of its own makes every history start with nothing, on one set of data.
                return open_store(namespace=f"history-{next(examples)}", **options)

        run_state_machine_as_test(Machine, settings=machine_settings(self.most_histories))
