"""What a check returns. A row's claim is the theorem's, whatever world is given: in a world that breaks an assumption
the row says that it does not hold."""

from dataclasses import dataclass

EXACT = 1e-10  # what two ways to compute one number may differ by


@dataclass(frozen=True)
class Row:
    """One line of the table: which theorem, what it claims, what was measured, whether that agrees."""

    theorem: str
    claim: str
    measured: str
    holds: bool
