"""Where runs are driven: each runtime defines how a side effect becomes durable, and nothing else."""
