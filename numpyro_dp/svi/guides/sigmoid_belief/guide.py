"""``SigmoidBeliefNetworkGuide``: one hidden layer of binary units, from noisy scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, ArrayLike, Float
from numpyro import handlers
from numpyro.distributions import constraints

from numpyro_dp import _validate
from numpyro_dp.model.guided.model import Outline
from numpyro_dp.svi.guides.conjugate.family import draw, param
from numpyro_dp.svi.guides.sigmoid_belief.recognise import Network, read_network
from numpyro_dp.svi.guides.sigmoid_belief.statistics import (
    BeliefSchedule,
    BeliefSettings,
    KnownUnits,
    Layers,
    checked_basis,
    codes,
    principal_components,
)
from numpyro_dp.svi.vips.statistics import StatisticsGuide


class SigmoidBeliefNetworkGuide(StatisticsGuide):
    """The guide of :class:`~numpyro_dp.VIPS` for sigmoid belief networks of one hidden layer.

    .. code-block:: python

        def model(x):  # (records, J) of zeros and ones
            rate = numpyro.sample("rate", dist.Gamma(a, r).expand([J, K]).to_event(2))
            t = numpyro.sample("t", dist.InverseGamma(b, rate).to_event(2))
            w = numpyro.sample("w", dist.Normal(0, jnp.sqrt(t)).to_event(2))
            bias = numpyro.sample("bias", dist.Normal(0, 3).expand([J]).to_event(1))
            base = numpyro.sample("base", dist.Normal(0, 1).expand([K]).to_event(1))
            with numpyro.plate("records", x.shape[0]):
                z = numpyro.sample("z", dist.Bernoulli(logits=base).expand([K]).to_event(1))
                numpyro.sample("x", dist.Bernoulli(logits=z @ w.T + bias).to_event(1), obs=x)

    ``t`` and ``rate`` make the weights three-parameter beta normal (a horseshoe at a = b = 1/2);
    ``t`` may have a public rate, and ``w`` a public scale. ``base`` may be a constant.

    Rounds: second moments of the records once (a quarter of the squared privacy loss), whose
    principal components above the noise become the first weights; the matrix Σzz'/4, one bound of
    the curvature of all pixels (15 %); then scores Σ(x − σ(Wz + b))z', one step each. The hidden
    units of a record come from that record and released weights, by a fixed number of mean-field
    steps. Hyper-posteriors and hidden logits are computed from released values.

    :param model: the NumPyro model.
    :param data_plate: name of the private plate, when several enclose the observations.
    :param record_norm: public guess of the L2 norm of a typical record (the root of the number of
        its ones); larger records count less in the start.
    :param basis: public orthonormal rows, shape (rows, J), in which the start's second moments are
        taken: averages of neighbouring pixels, say, which need fewer numbers and less noise;
        default: every visible unit.
    :param code_clip: bound on a record's ``zz'/4``; default (K + 1)/6.
    :param score_clip: bound on a record's score; default ``0.15 * sqrt(J * (K + 1))``. Replaced by
        the ``clip_norm`` of :class:`~numpyro_dp.VIPS`.
    :param inner_steps: mean-field steps of one record.
    :raises ValueError: for options out of range.

    **Privacy.** Released: the noisy sum of each round; one event each. Sensitivity under zero-out:
    ``record_norm**2`` (times 1.02 with the mean), ``code_clip``, ``score_clip``; all records are
    clipped to them exactly. A record's hidden units are a function of that record and of earlier
    releases, and are never released. Post-processing: everything else. Discrete latents are not
    summed out: no density of the model is ever evaluated, only the visible units are read from a
    record, by a program that is proved to read nothing else.

    **References.** Park, Foulds, Chaudhuri, Welling, *Variational Bayes in Private Settings (VIPS)*
    (JAIR 2020), section 6, with one shared bound matrix (Böhning, *Multinomial Logistic Regression
    Algorithm*, 1992) in place of its matrix for each pixel; Armagan, Clyde, Dunson, *Generalized
    Beta Mixtures of Gaussians* (NeurIPS 2011) for the prior; Gan, Henao, Carlson, Carin, *Learning
    Deep Sigmoid Belief Networks with Data Augmentation* (AISTATS 2015).

    **Example**::

        >>> import jax, numpy as np, numpyro, numpyro.distributions as dist
        >>> import numpyro_dp as ndp
        >>> def model(x):
        ...     w = numpyro.sample("w", dist.Normal(0, 2).expand([12, 3]).to_event(2))
        ...     bias = numpyro.sample("bias", dist.Normal(0, 3).expand([12]).to_event(1))
        ...     with numpyro.plate("images", x.shape[0]):
        ...         z = numpyro.sample("z", dist.Bernoulli(0.5).expand([3]).to_event(1))
        ...         numpyro.sample("x", dist.Bernoulli(logits=z @ w.T + bias).to_event(1), obs=x)
        >>> guide = ndp.guides.SigmoidBeliefNetworkGuide(model, record_norm=2.5)
        >>> fit = ndp.VIPS(model, guide, privacy=ndp.Budget(1.0, 1e-5))
        >>> x = np.random.default_rng(0).integers(0, 2, (2_000, 12)).astype(np.float32)
        >>> result = fit.run(jax.random.key(0), 8, x, progress_bar=False)
        >>> result.get_samples(num_samples=5)["w"].shape
        (5, 12, 3)
    """

    # 2^K settings of hidden units are never summed over.
    _summed = False

    def __init__(
        self,
        model: Callable[..., Any],
        *,
        data_plate: str | None = None,
        record_norm: float,
        basis: ArrayLike | None = None,
        code_clip: float | None = None,
        score_clip: float | None = None,
        inner_steps: int = 12,
    ) -> None:
        super().__init__(model, data_plate=data_plate)
        self._record_norm = _validate.positive("record_norm", record_norm)
        self._code_clip, self._score_clip = (
            None if value is None else _validate.positive(name, value)
            for name, value in (("code_clip", code_clip), ("score_clip", score_clip))
        )
        self._basis = basis
        self._inner_steps = _validate.positive_int("inner_steps", inner_steps)
        self._network: Network | None = None

    def scheduled(
        self, found: Outline, num_steps: int | None, *, clip_norm: float | None
    ) -> BeliefSchedule:
        """The network's rounds at known shapes.

        :raises UnsupportedModelError: the model is no such network; by site and cause.
        :raises ValueError: fewer than three steps, or a basis of the wrong shape.
        """
        network = read_network(self.model, found)
        basis = checked_basis(self._basis, network.pixels)
        size = network.units + 1
        default = 0.15 * math.sqrt(network.pixels * size)
        own = default if self._score_clip is None else self._score_clip
        settings = BeliefSettings(
            record_norm=self._record_norm,
            code_clip=size / 6 if self._code_clip is None else self._code_clip,
            score_clip=own if clip_norm in (None, math.inf) else clip_norm,
            inner_steps=self._inner_steps,
        )
        return _Rounds(self, found, network, basis, settings, num_steps, clip_norm != math.inf)

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Array]:
        """Draw weights, bias, hidden logits and scales from the fitted law, not hidden units."""
        if self._network is None:
            # The model's shapes are read, and its sites hidden from whoever traces this guide.
            with handlers.block(), jax.ensure_compile_time_eval():
                found = self.outlined(self.model, args, kwargs, self.data_plate)
                self._network = read_network(self.model, found)
        network = self._network
        drawn = _draw_scales(network)
        for name in (network.weights, network.bias, network.base):
            if name is not None:
                shape = network.priors[name].shape
                loc = param(f"{name}_loc", jnp.zeros(shape))
                scale = param(f"{name}_scale", jnp.ones(shape), constraints.positive)
                event_dim = network.priors[name].event_dim
                drawn[name] = draw(name, dist.Normal(loc, scale), event_dim)
        return drawn

    def draw_from(self, network: Network) -> None:
        """Take the sites of the network that is being run; autoguides learn theirs likewise."""
        self._network = network

    def codes(
        self, params: Mapping[str, Array], x: Float[Array, "records pixels"]
    ) -> Float[Array, "records units"]:
        """Probabilities of the hidden units of public records.

        :param params: a run's parameters.
        :param x: zeros and ones.

        **Privacy.** A function of released parameters and of ``x``: for records that are public,
        or that belong to whoever reads the result.
        """
        layers = self._layers(params)
        one = partial(codes, layers, steps=self._inner_steps)
        return jax.jit(jax.vmap(one))(jnp.asarray(x, layers.bias.dtype))

    def reconstruct(
        self, params: Mapping[str, Array], x: Float[Array, "records pixels"]
    ) -> Float[Array, "records pixels"]:
        """Probabilities of the visible units given the hidden units that public records suggest.

        Parameters and **Privacy** as :meth:`codes`.
        """
        layers = self._layers(params)
        return jax.nn.sigmoid(self.codes(params, x) @ layers.weights.T + layers.bias)

    def principal_components(self, state: KnownUnits, count: int) -> tuple[Array, Array, Array]:
        """The private principal components that a run starts from, an honest baseline.

        :param state: ``.state`` of a run's result.
        :param count: components wanted, the largest first.
        :returns: eigenvalues of the records' second moments, eigenvectors (J, count), and the
            eigenvalue up to which all is noise.

        **Privacy.** Post-processing of the first release.
        """
        values, vectors = principal_components(state, count)
        if self._basis is not None:
            vectors = jnp.asarray(self._basis, vectors.dtype).T @ vectors
        return values, vectors, state.edge

    def _layers(self, params: Mapping[str, Array]) -> Layers:
        network = self._network
        if network is None:
            raise ValueError("this guide has not been run: only a run tells its network's sites")
        weights = jnp.asarray(params[f"{network.weights}_loc"])
        base = params[f"{network.base}_loc"] if network.base else network.logits
        return Layers(
            weights.T if network.turned else weights,
            jnp.asarray(params[f"{network.bias}_loc"]),
            jnp.asarray(base, weights.dtype),
        )

    def __getstate__(self) -> dict[str, Any]:
        # A traced program does not pickle; drawing needs none.
        network = self._network
        kept = None if network is None else network._replace(outcome=_unread)
        return {**self.__dict__, "_network": kept}


class _Rounds(BeliefSchedule):
    """A network's rounds with the arguments they were traced on."""

    def __init__(
        self, guide: SigmoidBeliefNetworkGuide, found: Outline, network: Network, *rest: Any
    ) -> None:
        super().__init__(network, found.num_records, *rest)
        self._guide, self._found = guide, found

    def records(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Array]:
        """Record arrays in the order they were traced."""
        return self._found.records(self._guide.model, args, kwargs)

    def target(self) -> _Law:
        """Global latents alone: hidden units belong to records."""
        self._guide.draw_from(self.network)
        return _Law(self._guide)


class _Law(NamedTuple):
    """What draws from the fitted guide, without model or records."""

    guide: SigmoidBeliefNetworkGuide

    def unconstrain(self, params: Mapping[str, Array]) -> dict[str, Array]:
        """Parameters as :meth:`draw` takes them: as they are."""
        return dict(params)

    def draw(
        self, params: Mapping[str, Array], key: Array
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """One draw of the latents; there are no deterministic sites."""
        guide = handlers.substitute(handlers.seed(self.guide, key), data=dict(params))
        return guide(), {}


def _draw_scales(network: Network) -> dict[str, Array]:
    """The weights' variances and their rates, where the model has them."""
    drawn: dict[str, Array] = {}
    above, spread = network.spread_rate, network.spread
    if spread is None:
        return drawn
    prior = network.priors[spread]
    shape = jnp.asarray(prior.params["concentration"], float)
    if above is not None:
        law, event_dim = network.priors[above].params, network.priors[above].event_dim
        rate = param(f"{above}_rate", law["rate"], constraints.positive)
        drawn[above] = draw(above, dist.Gamma(law["concentration"] + shape, rate), event_dim)
    rate = param(f"{spread}_rate", jnp.ones(prior.shape), constraints.positive)
    drawn[spread] = draw(spread, dist.InverseGamma(shape + 0.5, rate), prior.event_dim)
    return drawn


def _unread(record: Sequence[Array]) -> Array:
    raise ValueError("a guide that was pickled draws and reconstructs; a run reads records anew")
