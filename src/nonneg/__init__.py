"""nonneg: features you can read. The public surface, nothing else."""

__version__ = "0.1.0"
