"""Ids that a test can predict."""

from collections import Counter

from helix_agents.ports.clock import IdSource


class CountingIds(IdSource):
    """Creates `run_1`, `run_2`, `ckpt_1` …: unique within one source, the same in every run of a test."""

    def __init__(self) -> None:
        self._minted: Counter[str] = Counter()

    def new(self, prefix: str) -> str:
        self._minted[prefix] += 1
        return f"{prefix}_{self._minted[prefix]}"
