"""A privacy budget: the pair (ε, δ) a user is willing to spend."""

from dataclasses import dataclass

from numpyro_dp._validate import finite_float, positive

# The δ of a report when neither a budget nor the caller names one.
DEFAULT_DELTA = 1e-6


@dataclass(frozen=True)
class Budget:
    """An (ε, δ) budget.

    :param epsilon: largest ε that may be spent, in (0, inf).
    :param delta: the δ at which ε is read off the privacy curve, in (0, 1).
    :raises ValueError: when either number is outside its range.

    **Example**::

        >>> Budget(epsilon=1.0, delta=1e-5)
        Budget(epsilon=1.0, delta=1e-05)

    **Privacy.** A pair of numbers; both must be chosen without looking at the records. Which data
    sets it compares is said by the ``relation`` of whoever is given the budget.

    **References.** Dwork and Roth, *The Algorithmic Foundations of Differential Privacy* (2014),
    definition 2.4.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        epsilon = positive("epsilon", self.epsilon)
        delta = finite_float("delta", self.delta)
        if not 0 < delta < 1:
            raise ValueError(f"delta must lie in (0, 1), got {self.delta!r}")
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "delta", delta)
