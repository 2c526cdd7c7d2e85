"""DP-Fast MH bound to records, as the tests of its charges and of its steps both need it."""

import numpyro_dp as ndp
from numpyro_dp.model.private_model import private_model
from tests.models import logistic

FIXED = {"step_size": 0.1, "lipschitz": 2.0, "max_move": 0.2}


def bound(data, *, relation="zero_out", steps=1_000, chains=1, model=logistic, **arguments):
    kernel = ndp.DPFastMH(model, **arguments)
    wall = private_model(model, data, private_size=relation == "add_remove")
    return kernel.bind(wall, num_steps=steps, relation=relation, delta=1e-5, num_chains=chains)
