"""How commands speak: sentences for people on the terminal, or one JSON document for scripts."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from helix_agents.domain.errors import HelixError


@dataclass(kw_only=True)
class Output:
    """One command's voice. With `--json`, standard output carries exactly one JSON document and nothing else."""

    as_json: bool = False

    def say(self, sentence: str = "") -> None:
        """Tell a person something; silent for scripts, which get the whole answer from `answer`."""
        if not self.as_json:
            click.echo(sentence)

    def answer(self, document: Mapping[str, Any]) -> None:
        """Give a script the whole answer; silent for people, who were told along the way."""
        if self.as_json:
            click.echo(json.dumps(document, ensure_ascii=False))

    def fail(self, error: "HelixError") -> None:
        """Say what went wrong: a sentence on standard error, or `{"error": …}` where a script expects its answer."""
        if self.as_json:
            as_data = getattr(error, "as_data", None)
            self.answer(as_data() if as_data is not None else {"error": {"code": error.code, "message": str(error)}})
        else:
            click.echo(f"Error: {error}", err=True)
