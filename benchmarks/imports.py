"""What `import helix_agents` costs, as a ratio to importing the two libraries it builds on.

Run: uv run python benchmarks/imports.py [--quick]
"""

import argparse
import json
import statistics
import subprocess
import sys
import time


def seconds(statement: str) -> float:
    """Wall time of one statement in a fresh interpreter, without the interpreter's own start."""
    program = f"import time; begin = time.perf_counter(); {statement}; print(time.perf_counter() - begin)"
    return float(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)


def main() -> None:
    """Measure, print a table, and the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less than a minute")
    rounds = 10 if parser.parse_args().quick else 30
    ours, theirs = "import helix_agents; helix_agents.Page", "import pydantic, msgspec; pydantic.BaseModel"
    begin = time.perf_counter()
    for statement in (ours, theirs):
        seconds(statement)
    pairs = [(seconds(ours), seconds(theirs)) for _ in range(rounds)]
    figures = {
        "import_ms": round(statistics.median(mine for mine, _ in pairs) * 1000, 1),
        "floor_ms": round(statistics.median(floor for _, floor in pairs) * 1000, 1),
        "ratio": round(statistics.median(mine / floor for mine, floor in pairs), 3),
    }
    print(f"{'import helix_agents':32}{figures['import_ms']:>8} ms")
    print(f"{'import pydantic, msgspec':32}{figures['floor_ms']:>8} ms")
    print(f"{'ratio (aim 1.5)':32}{figures['ratio']:>8}    ({rounds} pairs, {time.perf_counter() - begin:.0f} s)")
    print(json.dumps({"import": figures}))


if __name__ == "__main__":
    main()
