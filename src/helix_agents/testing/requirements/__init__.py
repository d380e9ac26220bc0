"""What every backend has to keep, as data: one sentence per requirement, each proven by a contract."""
