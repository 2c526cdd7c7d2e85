"""Which fields of a state a caller may collect."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from numpyro_dp.mcmc.kernel import BoundKernel

__all__ = ["check_fields"]

_SECRET = ("rng_key",)


def check_fields(bound: BoundKernel, z: dict, extra_fields: Sequence[str]) -> None:
    """Refuse what is not a field of the kernel's state, or is a secret of the run.

    :param bound: the bound kernel.
    :param z: starting positions, for their shapes.
    :param extra_fields: names as given to ``MCMC.run``.
    :raises ValueError: for a key, or a name that the state does not have.
    """
    state = jax.eval_shape(lambda z: bound.start(jax.random.key(0), z), z)
    for name in extra_fields:
        if name.startswith("~"):
            continue
        field = name.split(".")[0]
        if field in _SECRET:
            raise ValueError(
                f"extra_fields: {name!r} is a secret of the run; a key tells the noise, and with "
                "it the records"
            )
        if field not in state._fields or ("." in name and name.split(".", 1)[1] not in z):
            public = [f for f in state._fields if f not in _SECRET]
            raise ValueError(
                f"extra_fields: the state has no field {name!r}; it has {', '.join(public)} "
                f"and z.<site> for the sites {', '.join(z)}"
            )
