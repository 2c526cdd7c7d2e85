"""What a guarantee means to an attacker who tries to tell whether a record was used."""

import math
from functools import lru_cache
from typing import NamedTuple

from numpyro_dp.accounting.curve import PrivacyCurve

FALSE_POSITIVE_RATE = 0.01
_FARTHEST = 60.0


class AttackRisk(NamedTuple):
    """Upper bounds that hold for every attacker, whatever else is known.

    :param advantage: true positive rate minus false positive rate of any membership test.
    :param true_positive_rate: share of true members found at one false alarm in a hundred.
    :param certainty: how often a guess is right that starts from even odds.
    """

    advantage: float
    true_positive_rate: float
    certainty: float


@lru_cache(maxsize=256)
def attack_risk(curve: PrivacyCurve) -> AttackRisk:
    """Return certified bounds on membership attacks against an event with this ``curve``.

    **References.** Wasserman and Zhou, *A statistical framework for differential privacy* (2010),
    Theorem 2.4; Kairouz, Oh and Viswanath, *The composition theorem for differential privacy*
    (2015).

    **Example**::

        >>> from numpyro_dp.accounting.curve import privacy_curve
        >>> from numpyro_dp.accounting.events import GaussianDpEvent
        >>> round(attack_risk(privacy_curve(GaussianDpEvent(2.0))).advantage, 4)
        0.1974
    """
    if not curve.private:
        return AttackRisk(1.0, 1.0, 1.0)
    advantage = curve.delta(0.0)
    return AttackRisk(advantage, _true_positives(curve), (1 + advantage) / 2)


def _true_positives(curve: PrivacyCurve) -> float:
    """Return the least of the bounds that (ε, δ(ε)) sets for every ε, from both sides."""

    def lifted(epsilon: float) -> float:
        return curve.delta(epsilon) + math.exp(epsilon) * FALSE_POSITIVE_RATE

    def kept(epsilon: float) -> float:
        return 1 - math.exp(-epsilon) * (1 - curve.delta(epsilon) - FALSE_POSITIVE_RATE)

    # Every ε gives a valid bound, so a grid loses tightness only.
    likely = [0.05 * step for step in range(100)]
    far = [5.0 * 1.1**step for step in range(40) if 5.0 * 1.1**step < _FARTHEST]
    best = 1.0
    for epsilon in [*likely, *far]:
        best = min(best, lifted(epsilon), kept(epsilon))
        if math.exp(epsilon) * FALSE_POSITIVE_RATE > best and curve.delta(epsilon) < 0.01:
            break
    return best
