"""What all rounds together say: a Gaussian likelihood with known noise."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.linalg import cholesky, inv, solve
from scipy.stats import chi2

from numpyro_dp.scoring.information import Matrix, Vector
from numpyro_dp.scoring.prior import Directions, every_direction
from numpyro_dp.scoring.rounds import Pooled, PriorMoments, Round, pool, posterior
from numpyro_dp.scoring.steps import trusted
from numpyro_dp.scoring.verdicts.trust import Located

# Fewer rounds are not expected to check each other.
_FEW = 4
# Rounds with less weight say too little to disagree.
_HEARD = 0.05
# Rounds may be so far apart, in posterior standard deviations, for other reasons than their noise,
# such as a clip of another size. Where noise is small that shows: it is not named, and widens
# intervals all the same.
_APART_ANYWAY = 0.3


def located(
    rounds: Sequence[Round],
    prior: PriorMoments,
    num_records: int,
    directions: Directions | None = None,
) -> Located:
    """The likelihood that all rounds make, with privacy noise, misfit and curvature in it.

    :param prior: of the coordinates that rounds asked in.
    :param directions: what these are of the latents; by default the latents themselves.
    """
    to = directions or every_direction(len(prior.sd))
    whitening, centre = rounds[-1].at.whitening, trusted(rounds)[0][-1].at.u
    for _ in range(3):
        pooled = pool(rounds, prior, num_records, centre, final=True, along=to.inverse)
        spread = _spread(pooled)
        own = spread * pooled.information
        noise = own + pooled.noise
        for _ in range(3):
            mean, covariance = posterior(pooled, noise, prior, whitening)
            noise = own + pooled.noise + _of_information(pooled, mean, covariance)
        centre = whitening.T @ mean
    # Before rounds that disagree widen it: of these another verdict speaks.
    with_noise = whitening.T @ covariance @ whitening
    chi, freedom = _disagreement(rounds, pooled)
    if freedom > 0 and chi > chi2.ppf(0.95, freedom):
        noise = own + (noise - own) * (chi / freedom)
        mean, covariance = posterior(pooled, noise, prior, whitening)
    back, root = inv(whitening), cholesky(noise)
    step = whitening.T @ mean - rounds[-1].at.u
    design = solve(root, pooled.information) @ back.T @ to.inverse
    values, vectors = np.linalg.eigh(pooled.information)
    outward = to.basis @ whitening.T
    u_covariance = outward @ covariance @ outward.T + to.silent
    prior_variance = np.diag((to.basis * prior.sd**2) @ to.basis.T + to.silent)
    without_noise = back @ pooled.information @ back.T / spread + prior.precision
    return Located(
        design=design,
        response=solve(root, pooled.response) + design @ to.origin,
        mean=to.origin + outward @ mean,
        covariance=u_covariance,
        information=values,
        noise_sd=np.sqrt(np.einsum("ik,ij,jk->k", vectors, noise - own, vectors)),
        resolved=1 - np.diag(u_covariance) / prior_variance,
        out=(outward @ mean - to.basis @ prior.mean) / np.sqrt(prior_variance),
        dispersion=pooled.dispersion,
        misfit=pooled.misfit,
        misfit_sd=pooled.misfit_sd,
        tail=pooled.tail,
        tail_sd=pooled.tail_sd,
        disagreement=_disagreement(rounds, pooled, _APART_ANYWAY)[0] / max(freedom, 1),
        freedom=freedom,
        travelled=math.sqrt(step @ rounds[-1].at.precision @ step),
        unresolved=pooled.unresolved,
        signal=pooled.signal,
        widened=_widened(inv(without_noise), with_noise, to),
        clear=rounds[0].at.clear,
        checked=len(rounds) < _FEW or freedom > 0,
        groups=_groups(prior, len(to.origin)),
        outside=rounds[0].at.outside,
        moved=np.abs(to.basis @ step) / np.sqrt(np.diag(u_covariance)),
    )


def _spread(pooled: Pooled) -> float:
    """How much more the records' scores vary than the information says, as intervals count it.

    That they vary less than the model expects is believed as far as noise does not explain it: of
    two coordinates it made intervals a fifth narrower than NUTS's now and then.
    """
    less = 1 - pooled.misfit
    if less <= 0:
        return pooled.dispersion
    believed = 1 - less * max(0.0, 1 - (pooled.misfit_sd / less) ** 2)
    return pooled.dispersion * believed / pooled.misfit


def _widened(without: Matrix, with_noise: Matrix, to: Directions) -> Vector:
    """The root of how much larger the second covariance is, of each latent; 1 of what is untold.

    Of whole intervals, and not of each latent were the others known: of groups beside a column that
    is not centred these are twice as wide, and the intervals, which hang together, five times.
    """
    more, less = (
        np.diag(to.basis @ each @ to.basis.T + to.silent) for each in (with_noise, without)
    )
    return np.sqrt(np.divide(more, less, where=less > 0, out=np.ones_like(more)))


def _groups(prior: PriorMoments, dim: int) -> Vector | bool:
    """Which of the latents are groups' effects, shape (dim,)."""
    if prior.entries is None:
        return False
    found = np.zeros(dim, bool)
    found[prior.entries.groups] = True
    return found


def whitening_at(
    at: Located, rounds: Sequence[Round], prior: PriorMoments, num_records: int
) -> Matrix:
    """W with W·(information + prior precision)·Wᵀ = 1, as all rounds together say; (dim, dim)."""
    last = rounds[-1].at.whitening
    information = pool(rounds, prior, num_records, at.mean, final=True).information
    back = inv(last)
    return inv(cholesky(back @ information @ back.T + prior.precision))


def _of_information(pooled: Pooled, mean: Vector, covariance: Matrix) -> Matrix:
    """Noise of A x where A is noisy itself, at a distance from where the scores were taken."""
    gap = mean - pooled.middle
    moment = np.outer(gap, gap) + covariance
    level = pooled.information_sd**2 / 2
    return level * pooled.entries.noise(moment)


def _disagreement(
    rounds: Sequence[Round], pooled: Pooled, allowed: float = 0.0
) -> tuple[float, int]:
    """χ² of the rounds about what all of them say, and its degrees of freedom.

    :param allowed: how far apart rounds may be beside their noise, in posterior sds.
    """
    whitening = rounds[-1].at.whitening
    outward, dim, chi, heard = inv(whitening).T, len(whitening), 0.0, 0
    for r, weight, curvature in zip(rounds, pooled.weights, pooled.curvature, strict=True):
        if weight < _HEARD:
            continue
        frame = whitening @ inv(r.at.whitening)
        gap = frame @ r.score + pooled.information @ (outward @ r.at.u) - pooled.response
        noise = r.score_sd**2 * frame @ frame.T + (curvature + allowed**2) * np.eye(dim)
        chi, heard = chi + float(gap @ solve(noise, gap)), heard + 1
    return chi, dim * (heard - 1)
