"""Whether the chains of a run agree, from their draws."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpyro.diagnostics import split_gelman_rubin

from numpyro_dp.mcmc.sgmcmc.integrator import Note

# Of chains that agree it is below 1.05 with fifty draws each. Fewer tell too little.
_APART, _DRAWS = 1.2, 50


def unmixed_notes(states: dict[str, Any]) -> tuple[Note, ...]:
    """What a report says where chains have not mixed, of which nothing else may tell.

    :param states: what NumPyro collected; constrained draws by site, leading axes chain and draw.

    **Privacy.** A function of released draws.
    """
    # What a postprocess_fn makes of the draws may be of any kind.
    sites = states["z"] if isinstance(states["z"], dict) else {}
    worst = {
        name: _worst(np.asarray(rows))
        for name, rows in sites.items()
        if np.ndim(rows) > 1 and np.size(rows) and np.shape(rows)[1] >= _DRAWS
    }
    name = max(worst, key=worst.__getitem__, default="")
    if not name or worst[name] <= _APART:
        return ()
    text = (
        f"do not use: the chains have not mixed: R-hat of {name!r} is {worst[name]:.3g}. The "
        "release is as good as before, and further runs of this object are free: give it a longer "
        "num_warmup, take init_strategy=init_to_median, or write the model with locations and "
        "scales apart (numpyro.infer.reparam.LocScaleReparam)"
    )
    return (Note(text, f"have not mixed in {name!r}", first=True),)


def _worst(rows: np.ndarray) -> float:
    """The largest R-hat of a site's coordinates; 1 where nothing moves, as of a constant."""
    flat = rows.reshape(*rows.shape[:2], -1).astype(float)
    moving = np.ptp(flat, axis=(0, 1)) > 0
    if not moving.any():
        return 1.0
    with np.errstate(all="ignore"):
        found = split_gelman_rubin(flat[..., moving])
    # Chains that stand still at different places have no variance within.
    return float(np.max(np.where(np.isnan(found), np.inf, found)))
