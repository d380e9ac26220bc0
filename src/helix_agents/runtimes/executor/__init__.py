"""The executor every runtime shares: all of it but where and how a run is driven."""
