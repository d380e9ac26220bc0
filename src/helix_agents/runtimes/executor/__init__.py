"""The executor that all runtimes share: everything except where and how a run is driven."""
