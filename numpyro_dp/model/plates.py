"""Run an unchanged model at full size, or on a few rows of its private plate.

A plate announces itself by a message before it hands out indices; answering that message decides
how many slices it has. Everything else (which sites count, which scale they carry) is read off
the frames that the plate leaves on every site inside it.
"""

import contextlib
import warnings
from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.distributions.util import is_identically_one
from numpyro.infer.util import _unconstrain_params, log_density
from numpyro.primitives import Messenger

from numpyro_dp.errors import UnsupportedModelError

Model = Callable[..., Any]
Trace = Mapping[str, dict[str, Any]]
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
_LAYERS = (dist.ExpandedDistribution, dist.MaskedDistribution, dist.Independent)

# Ends the name of a term of the guide, to which the model has one of the same name.
OF_THE_GUIDE = " (of the guide)"


def in_plate(site: Mapping[str, Any], plate: str) -> bool:
    """Say whether a site lies inside the named plate."""
    return any(frame.name == plate for frame in site["cond_indep_stack"])


class Peeled(NamedTuple):
    """What is inside of expanded, masked and reshaped distributions.

    - **fn**: the distribution itself.
    - **kept**: the mask of its draws; ``True`` where nothing masks.
    - **folded**: how many of its batch dimensions ``to_event`` took.
    """

    fn: Any
    kept: Any
    folded: int


def peeled(fn: Any) -> Peeled:
    """Take off what expands, masks or reshapes a distribution."""
    kept, folded = True, 0
    while isinstance(fn, _LAYERS):
        if isinstance(fn, dist.MaskedDistribution):
            kept = jnp.logical_and(kept, fn._mask)
        elif isinstance(fn, dist.Independent):
            more = fn.reinterpreted_batch_ndims
            if kept is not True:
                kept = jnp.reshape(kept, jnp.shape(kept) + (1,) * more)
            folded += more
        fn = fn.base_dist
    return Peeled(fn, kept, folded)


def site_log_prob(site: Mapping[str, Any]) -> jax.Array:
    """Return the summed, scaled log probability of a traced sample site."""
    return jnp.sum(_log_prob(site))


def _log_prob(site: Mapping[str, Any]) -> jax.Array:
    if site["intermediates"]:
        log_prob = site["fn"].log_prob(site["value"], site["intermediates"])
    else:
        log_prob = site["fn"].log_prob(site["value"])
    scale = site["scale"]
    if scale is not None and not is_identically_one(scale):
        log_prob = scale * log_prob
    return log_prob


def _by_row(site: Mapping[str, Any], plate: str, rows: int) -> jax.Array:
    """Log probability of a site in a plate, before any sum: (rows, entries)."""
    log_prob = _log_prob(site)
    frame = next(f for f in site["cond_indep_stack"] if f.name == plate)
    missing = max(-frame.dim - jnp.ndim(log_prob), 0)
    log_prob = jnp.reshape(log_prob, (1,) * missing + jnp.shape(log_prob))
    return jnp.reshape(jnp.moveaxis(log_prob, frame.dim, 0), (rows, -1))


def _redrawn(sites: Trace, key: jax.Array) -> dict[str, tuple[jax.Array, jax.Array]]:
    """What is observed at each site, and a draw of the same shape in its place."""
    found = {}
    for name, site in sites.items():
        if not site["is_observed"]:
            continue
        # Some distributions cannot be sampled from; with enumerated latents there are more draws.
        with contextlib.suppress(Exception):
            value = jnp.asarray(site["value"])
            drawn = jnp.asarray(site["fn"].sample(key))
            if drawn.shape[drawn.ndim - value.ndim :] == value.shape:
                found[name] = value, drawn.reshape(-1, *value.shape)[0]
    return found


class WholePlates(Messenger):
    """Switch every subsampling plate to its full size and remember what was asked."""

    def __init__(self, fn: Model) -> None:
        super().__init__(fn)
        self.sizes: dict[str, tuple[int, int | None]] = {}

    def process_message(self, msg: dict[str, Any]) -> None:
        """Answer plate and subsample messages; leave every other message alone."""
        if msg["type"] == "plate":
            size, subsample_size = msg["args"]
            self.sizes[msg["name"]] = (size, subsample_size)
            msg["value"] = jnp.arange(size)
            msg["args"] = (size, size)
        elif msg["type"] == "subsample":
            msg["kwargs"]["event_dim"] = None


class _RowsOfPlate(Messenger):
    """Shrink the private plate to ``rows`` slices and silence every site outside it."""

    def __init__(self, fn: Model, plate: str, num_records: int, rows: int) -> None:
        super().__init__(fn)
        self.plate, self.num_records, self.rows = plate, num_records, rows
        self.factor = 1.0

    def process_message(self, msg: dict[str, Any]) -> None:
        """Answer the private plate, undo its scale, mask what is not a record's term."""
        if msg["type"] == "plate":
            self._answer_plate(msg)
        elif msg["type"] == "subsample":
            # The rows passed in are already the right ones.
            msg["kwargs"]["event_dim"] = None
        elif msg["type"] == "sample" and in_plate(msg, self.plate):
            self._undo_scale(msg)
        elif msg["type"] == "sample":
            msg["fn"] = msg["fn"].mask(False)

    def _answer_plate(self, msg: dict[str, Any]) -> None:
        size, subsample_size = msg["args"]
        if msg["name"] != self.plate:
            if subsample_size is not None and subsample_size != size:
                raise UnsupportedModelError(subsampling_message(msg["name"], size, subsample_size))
            return
        if size not in (self.num_records, self.rows):
            raise UnsupportedModelError(
                f"plate `{self.plate}` has size {self.num_records} on all records but {size} on "
                f"{self.rows}: give it the number of rows of a record argument"
            )
        self.factor = size / self.rows
        msg["value"] = jnp.arange(self.rows)
        msg["args"] = (size, self.rows)

    def _undo_scale(self, msg: dict[str, Any]) -> None:
        if self.factor != 1.0 and msg["scale"] is not None:
            scale = msg["scale"] / self.factor
            msg["scale"] = None if is_identically_one(scale) else scale
            msg.get("plate_to_scale", {}).pop(self.plate, None)


def subsampling_message(name: str, size: int, subsample_size: int) -> str:
    """Say why a subsampling plate other than the private one is refused."""
    return (
        f"plate `{name}` subsamples ({subsample_size} of {size}): only the private plate may be "
        "subsampled, and numpyro_dp does that; leave `subsample_size` out"
    )


def run_whole(
    model: Model,
    arguments: Arguments,
    key: jax.Array,
    *,
    strategy: Callable[..., Any] | None = None,
    unconstrained: Mapping[str, Any] | None = None,
) -> tuple[Trace, dict[str, tuple[int, int | None]]]:
    """Trace the model on all rows, with latents from a strategy or from unconstrained values."""
    whole = WholePlates(model)
    seeded = handlers.seed(whole, key)
    if unconstrained is None:
        body = handlers.substitute(seeded, substitute_fn=strategy)
    else:
        body = _unconstrain_params(seeded, dict(unconstrained))
    args, kwargs = arguments
    return handlers.trace(body).get_trace(*args, **kwargs), whole.sizes


class RowRun(NamedTuple):
    """How to run a model on a few rows; ``enum_dim`` is 0 when nothing is summed out."""

    model: Model
    plate: str
    num_records: int
    enum_dim: int

    def __call__(
        self, constrained: Mapping[str, Any], arguments: Arguments, key: jax.Array, rows: int
    ) -> jax.Array:
        """Log likelihood of the rows passed in, every site outside the private plate masked."""
        body = self._body(constrained, key, rows)
        args, kwargs = arguments
        if self.enum_dim:
            with _enumerating(body, self.enum_dim) as (funsor, summed):
                value, trace = funsor.log_density(summed, args, kwargs, {})
        else:
            value, trace = log_density(body, args, kwargs, {})
        _sites_inside(trace, self.plate, rows)
        return jnp.asarray(value)

    def terms(self, *given: Any) -> dict[str, jax.Array]:
        """Log probability of each site of the rows, as (rows, entries); nothing is summed out."""
        return _terms(self._sites(*given), self.plate, given[-1])

    def outcomes(
        self, constrained: Mapping[str, Any], arguments: Any, key: jax.Array, rows: int
    ) -> dict[str, tuple[jax.Array, jax.Array]]:
        """What each site of the rows observed, and a draw in its place."""
        return _redrawn(self._sites(constrained, arguments, key, rows), key)

    def _body(self, constrained: Mapping[str, Any], key: jax.Array, rows: int) -> Model:
        shrunk = _RowsOfPlate(self.model, self.plate, self.num_records, rows)
        # The key is an input that dead-code elimination must find unused: dropout shows.
        return handlers.substitute(handlers.seed(shrunk, key), data=dict(constrained))

    def _sites(
        self, constrained: Mapping[str, Any], arguments: Any, key: jax.Array, rows: int
    ) -> Trace:
        body = self._body(constrained, key, rows)
        args, kwargs = arguments
        if self.enum_dim:
            with _enumerating(body, self.enum_dim) as (funsor, body), funsor.plate_to_enum_plate():
                trace = funsor.trace(body).get_trace(*args, **kwargs)
        else:
            trace = handlers.trace(body).get_trace(*args, **kwargs)
        return _sites_inside(trace, self.plate, rows)


class GuidedRowRun(NamedTuple):
    """How to run a model and its guide on a few rows whose own latents the guide draws."""

    model: Model
    guide: Model
    plate: str
    num_records: int

    def __call__(
        self, values: Mapping[str, Any], arguments: Arguments, key: jax.Array, rows: int
    ) -> jax.Array:
        """Log density of the rows' sites under the model less that under the guide, one draw."""
        traces = self._traces(values, arguments, key, rows)
        model, guide = (sum(map(site_log_prob, trace.values())) for trace in traces)
        return jnp.asarray(model - guide)

    def terms(self, *given: Any) -> dict[str, jax.Array]:
        """Log probability of each site of the rows under model and guide, as (rows, entries)."""
        model, guide = (_terms(trace, self.plate, given[-1]) for trace in self._traces(*given))
        return {**model, **{f"{name}{OF_THE_GUIDE}": guide[name] for name in guide}}

    def outcomes(
        self, values: Mapping[str, Any], arguments: Any, key: jax.Array, rows: int
    ) -> dict[str, tuple[jax.Array, jax.Array]]:
        """What each site of the rows observed, and a draw in its place."""
        return _redrawn(self._traces(values, arguments, key, rows)[0], key)

    def _traces(
        self, values: Mapping[str, Any], arguments: Any, key: jax.Array, rows: int
    ) -> tuple[Trace, Trace]:
        guide_trace = self._sites(self.guide, values, arguments, key, rows)
        # Without a key: whatever the guide leaves out would be drawn from the prior, unseen.
        drawn = {**values, **_drawn(guide_trace)}
        return self._sites(self.model, drawn, arguments, None, rows), guide_trace

    def drawn(self, *rest: Any) -> tuple[dict[str, Any], dict[str, int]]:
        """Latents of the rows' own that the guide draws, and the axis of the rows in each."""
        trace = self._sites(self.guide, *rest)
        return _drawn(trace), {name: row_axis(site, self.plate) for name, site in trace.items()}

    def _sites(self, fn: Model, *rest: Any) -> Trace:
        return row_sites(fn, self.plate, self.num_records, *rest)


def _terms(sites: Trace, plate: str, rows: int) -> dict[str, jax.Array]:
    return {name: _by_row(site, plate, rows) for name, site in sites.items()}


def _drawn(trace: Trace) -> dict[str, Any]:
    return {name: site["value"] for name, site in trace.items() if not site["is_observed"]}


def row_axis(site: Mapping[str, Any], plate: str) -> int:
    """Axis of the private plate in the value of a site inside it."""
    frame = next(f for f in site["cond_indep_stack"] if f.name == plate)
    return jnp.ndim(site["value"]) - site["fn"].event_dim + frame.dim


def row_sites(
    fn: Model,
    plate: str,
    num_records: int,
    values: Mapping[str, Any],
    arguments: Arguments,
    key: jax.Array | None,
    rows: int,
) -> Trace:
    """Sample sites of the private plate when a model or guide is run on a few rows."""
    shrunk: Model = _RowsOfPlate(fn, plate, num_records, rows)
    if key is not None:
        shrunk = handlers.seed(shrunk, key)
    args, kwargs = arguments
    sites = handlers.trace(handlers.substitute(shrunk, data=dict(values))).get_trace(
        *args, **kwargs
    )
    return _sites_inside(sites, plate, rows)


def _sites_inside(trace: Trace, plate: str, rows: int) -> Trace:
    inside = {k: s for k, s in trace.items() if s["type"] == "sample" and in_plate(s, plate)}
    if not inside:
        raise UnsupportedModelError(
            f"plate `{plate}` encloses nothing when the model is run on {_told(rows)}: give it the "
            "same name, and its sites, for any number of rows"
        )
    for name, site in inside.items():
        _require_rows(name, site, plate, rows)
    return inside


def _told(rows: int) -> str:
    return "one record" if rows == 1 else f"{rows} records"


def _require_rows(name: str, site: Mapping[str, Any], plate: str, rows: int) -> None:
    """Refuse a site that is wider along the private plate than the rows passed in."""
    fn = site["fn"]
    value_batch = jnp.shape(site["value"])[: jnp.ndim(site["value"]) - fn.event_dim]
    batch = jnp.broadcast_shapes(tuple(fn.batch_shape), value_batch)
    frame = next(f for f in site["cond_indep_stack"] if f.name == plate)
    entries = batch[frame.dim] if len(batch) >= -frame.dim else 1
    if frame.size != rows or entries != rows:
        raise UnsupportedModelError(
            f"site `{name}` has {max(entries, frame.size)} entries along plate `{plate}` when run "
            f"on {_told(rows)}: it reads data that is not an "
            "argument, or ignores the plate; pass all data as arguments, without "
            "`numpyro_dp.public` where they have a row for each record, and take sizes from "
            "`x.shape[0]`"
        )


@contextlib.contextmanager
def _enumerating(body: Model, enum_dim: int) -> Generator[tuple[Any, Model]]:
    """funsor, and ``body`` with its discrete latents to be summed out."""
    # An optional dependency of NumPyro, met only by models with discrete latents.
    from numpyro.contrib import funsor

    with warnings.catch_warnings():
        # config_enumerate turns enumeration on, which is what the warning asks for.
        warnings.simplefilter("ignore", FutureWarning)
        yield funsor, funsor.enum(funsor.config_enumerate(body), enum_dim)
