"""`helix serve` as scripts use it: one document that says where, once somebody would be answered there."""

import json
import signal
import subprocess
from pathlib import Path
from urllib.request import urlopen

from tests.support.command_line import HELIX, environment


def test_a_script_is_told_where_as_soon_as_somebody_is_answered_there(folder: Path) -> None:
    store = "sqlite:///helix.db"
    command = [HELIX, "serve", "agents:clerk", "--allow-unauthenticated", "--port", "0", "--store", store, "--json"]
    with subprocess.Popen(
        command, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as serving:
        try:
            assert serving.stdout is not None
            told = json.loads(serving.stdout.readline())
            assert (told["agents"], told["store"]) == (["clerk"], store)
            with urlopen(f"{told['url']}/healthz", timeout=30) as answer:
                assert answer.status == 200
        finally:
            serving.send_signal(signal.SIGTERM)
            out, err = serving.communicate(timeout=30)
    assert (out, err) == ("", "")
