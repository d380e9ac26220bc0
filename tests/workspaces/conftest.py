"""Which tests of workspaces a machine cannot run at all."""

import os

# Where no namespaces can be made, .ci/run says so aloud and sets this.
collect_ignore = ["test_sandbox.py"] if os.environ.get("HELIX_NO_SANDBOX") == "1" else []
