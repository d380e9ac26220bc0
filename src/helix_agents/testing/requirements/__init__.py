"""What every backend has to guarantee, as data: one sentence per requirement, each proven by a contract."""
