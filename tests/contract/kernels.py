"""The kernels that the contract tests run: one line a kernel."""

import pytest

import numpyro_dp as ndp

# name -> (constructor, arguments that make a small private run of tests.models.logistic)
KERNELS = {
    "DPSGFS": (ndp.DPSGFS, {"step_size": 1e-3, "batch_size": 60, "clip_norm": 1.0}),
    "DPSGHMC": (
        ndp.DPSGHMC,
        {"step_size": 1e-3, "friction": 28.0, "batch_size": 60, "clip_norm": 1.0},
    ),
    "DPSGLD": (ndp.DPSGLD, {"step_size": 1e-3, "batch_size": 60, "clip_norm": 1.0}),
    "DPSGNHT": (
        ndp.DPSGNHT,
        {"step_size": 1e-3, "diffusion": 28.0, "batch_size": 60, "clip_norm": 1.0},
    ),
}

# Kernels that run the whole contract by default; the others run its core (test_core_contract.py)
# by default and the rest under `-m slow`, since each test compiles each kernel anew.
_WHOLE_CONTRACT = ("DPSGLD",)
NAMES = [
    pytest.param(name, marks=[] if name in _WHOLE_CONTRACT else pytest.mark.slow)
    for name in sorted(KERNELS)
]
CORE = sorted(set(KERNELS) - set(_WHOLE_CONTRACT))


def make(name, model, **changes):
    """The named kernel on ``model`` with the contract's arguments, changed as asked."""
    constructor, arguments = KERNELS[name]
    arguments = {"noise_multiplier": 2.0, **arguments, **changes}
    return constructor(model, **arguments)
