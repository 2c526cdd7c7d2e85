"""What is proved where objectives are strongly convex: a Gaussian shift."""

import math

from numpyro_dp.accounting.bounds.proved import Proved, of_shift, proves
from numpyro_dp.accounting.events import LangevinLastIterate, LogConcaveDraw
from numpyro_dp.accounting.relation import Relation, sensitivity


@proves(LogConcaveDraw)
def _log_concave(event: LogConcaveDraw, relation: Relation) -> Proved:
    return of_shift(sensitivity(relation) * event.lipschitz / math.sqrt(event.strong_convexity))


@proves(LangevinLastIterate)
def _last_iterate(event: LangevinLastIterate, relation: Relation) -> Proved:
    size, steps = event.step_size, event.num_steps
    one = sensitivity(relation) * event.lipschitz * math.sqrt(size / 2)
    # 1 − c without cancellation; c = 1 is the composition of all steps.
    slack = min(size * event.strong_convexity, 2 - size * event.smoothness)
    if slack <= 0:
        return of_shift(one * math.sqrt(steps))
    slack = min(slack, 1.0)
    log_power = steps * math.log1p(-slack) if slack < 1 else -math.inf
    growth = -math.expm1(log_power) / (1 + math.exp(log_power)) * (2 - slack) / slack
    return of_shift(one * math.sqrt(min(growth, float(steps))))
