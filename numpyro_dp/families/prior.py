"""The prior of a generalised linear model, proved quadratic site by site."""

from collections.abc import Callable
from typing import Any

import jax
import numpyro.distributions as dist

from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.families.predictor import FITS, flat_position
from numpyro_dp.model.jaxprs import prune, trace_program
from numpyro_dp.model.messages import explained
from numpyro_dp.model.plates import in_plate, run_whole, site_log_prob
from numpyro_dp.model.private_model import PrivateModel
from numpyro_dp.model.structure import key_struct


def prior_terms(model: PrivateModel) -> Callable[[Any], dict[str, Any]]:
    """Log prior of each site outside the plate at a flat position, every one quadratic in it.

    :raises UnsupportedModelError: naming the first site whose curvature is not provably constant.
    """
    unravel, struct = flat_position(model)
    layout = model.layout

    def terms(position: Any, arrays: list[Any], key: jax.Array) -> dict[str, Any]:
        arguments = layout.fill(arrays)
        trace, _ = run_whole(model.function, arguments, key, unconstrained=unravel(position))
        samples = {name: site for name, site in trace.items() if site["type"] == "sample"}
        return {n: site_log_prob(s) for n, s in samples.items() if not in_plate(s, model.plate)}

    structs = layout.structs()
    # NumPyro's check that a value is finite reads it, and a position always is.
    with explained(), dist.distribution.validation_enabled(False):
        program = trace_program(terms, struct, structs, key_struct())
        curvature = trace_program(jax.hessian(terms), struct, structs, key_struct())
    names = sorted(program.out)
    for k, name in enumerate(names):
        if any(prune(curvature, [j == k for j in range(len(names))]).used):
            raise UnsupportedModelError(prior_message(model, name))
    # The split has shown that no record reaches these.
    pruned = prune(program)
    return lambda position: dict(zip(names, pruned([position]), strict=True))


def prior_message(model: PrivateModel, name: str) -> str:
    """Why the prior of a site is refused, and what would fit."""
    # NumPyro keeps the Jacobian of a constrained site in a factor of this name.
    name = name.removeprefix("_").removesuffix("_log_det") if name.endswith("_log_det") else name
    kind = "prior" if name in model.structure.latents else "factor"
    return (
        f"the {kind} of site `{name}` has no constant curvature in unconstrained coordinates: "
        "this needs normal (or flat) priors with constant mean and scale on unconstrained "
        "parameters; Student-t and Cauchy priors, horseshoes, scale parameters and hierarchies "
        f"are none; {FITS}"
    )
