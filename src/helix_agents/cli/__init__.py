"""The `helix` command: what operators and newcomers type."""

import sys


def main() -> None:
    """Run the `helix` command and leave the process with its exit code."""
    # Imported here because `helix_agents.cli` is also imported by tools that only read its commands.
    from helix_agents.cli.app import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
