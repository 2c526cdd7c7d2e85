"""The kernels that the contract tests run: one line a kernel."""

import numpyro_dp as ndp

# name -> (constructor, arguments that make a small private run of tests.models.logistic)
KERNELS = {
    "DPSGLD": (ndp.DPSGLD, {"step_size": 1e-3, "batch_size": 60, "clip_norm": 1.0}),
}


def make(name, model, **changes):
    """The named kernel on ``model`` with the contract's arguments, changed as asked."""
    constructor, arguments = KERNELS[name]
    arguments = {"noise_multiplier": 2.0, **arguments, **changes}
    return constructor(model, **arguments)
