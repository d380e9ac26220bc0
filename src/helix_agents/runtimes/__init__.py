"""Where runs are driven: each runtime says how a side effect becomes durable, and nothing else."""
