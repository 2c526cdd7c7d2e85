"""Everything a caller of ``numpyro_dp.MCMC`` can see, as a flat dict from place to bytes."""

import io
import pickle
import re
import warnings
from contextlib import redirect_stderr, redirect_stdout

import jax
import numpy as np

import numpyro_dp as ndp
from tests.arviz_groups import group_names

_STATES = (".last_state", ".post_warmup_state", ".mcmc._last_state", ".mcmc._warmup_state")
_STATES += (".pickled._last_state", ".pickled._warmup_state")

# Places that hold released draws, or text computed from them alone: these may differ between
# neighbouring data sets, and nothing else may.
RELEASED = (
    ".samples",
    ".last_state.z",
    ".post_warmup_state.z",
    ".mcmc._last_state.z",
    ".mcmc._warmup_state.z",
    ".mcmc._states",
    ".mcmc._states_flat",
    ".extra_fields['z.w']",
    ".summary",
    # What adaptation released before the first step.
    ".last_state.adapt_state",
    ".post_warmup_state.adapt_state",
    ".mcmc._last_state.adapt_state",
    ".mcmc._warmup_state.adapt_state",
    ".pickled._last_state.adapt_state",
    ".pickled._warmup_state.adapt_state",
    # What the report says of the draws, computed from them alone.
    ".privacy.drawn",
    ".mcmc._described.drawn",
    ".pickled._described.drawn",
    ".pickled.samples",
    ".pickled._last_state.z",
    ".pickled._warmup_state.z",
    ".idata.posterior",
    ".idata.sample_stats['z.w']",
)


def flatten(place, value, seen=None):
    """``{place: bytes}`` of everything reachable from ``value``."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return {}
    if isinstance(value, jax.Array) and jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    if isinstance(value, (np.ndarray, jax.Array, np.generic)):
        return {place: np.asarray(value).tobytes()}
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return {place: repr(value).encode()}
    if isinstance(value, dict):
        items = [(f"{place}[{key!r}]", item) for key, item in value.items()]
    elif hasattr(value, "_fields"):
        items = [(f"{place}.{name}", getattr(value, name)) for name in value._fields]
    elif isinstance(value, (list, tuple)):
        items = [(f"{place}[{k}]", item) for k, item in enumerate(value)]
    elif hasattr(value, "__dict__") and type(value).__module__.startswith(("numpyro", "tests")):
        # When a charge was made is a clock reading, like tqdm's.
        items = [(f"{place}.{name}", v) for name, v in vars(value).items() if name != "time"]
    else:
        return {place: type(value).__name__.encode()}
    seen = seen | {id(value)}
    found = {}
    for name, item in items:
        found |= flatten(name, item, seen)
    return found


def dataset_bytes(place, dataset):
    """Variables, coordinates and attributes of an xarray dataset, the clock left out."""
    found = {f"{place}[{name!r}]": np.asarray(v).tobytes() for name, v in dataset.variables.items()}
    for name, value in dataset.attrs.items():
        if name not in ("created_at", "dp_statement"):
            found[f"{place}.attrs[{name!r}]"] = repr(value).encode()
    return found


def surfaces(kernel, data, *, extra_fields=("i", "z.w"), seed=0):
    """Run ``kernel`` (warm-up, then draws) and collect every surface, noise fixed by seed."""
    out, err = io.StringIO(), io.StringIO()
    with warnings.catch_warnings(record=True) as caught, redirect_stdout(out), redirect_stderr(err):
        warnings.simplefilter("always")
        warmup = 10 if kernel.takes_warmup else 0
        mcmc = ndp.MCMC(kernel, num_warmup=warmup, num_samples=10, num_chains=2, secure=False)
        if warmup:
            mcmc.warmup(jax.random.key(seed), *data, extra_fields=extra_fields, collect_warmup=True)
        mcmc.run(jax.random.key(seed + 1), *data, extra_fields=extra_fields)
    found = {
        # Functions of released values, by the kernel's word; its own tests recompute them.
        ".derived": ",".join(mcmc._bound.derived).encode(),
        ".printed": out.getvalue().encode(),
        ".bar": _without_clock(_without_notes(err.getvalue())).encode(),
        ".warnings": repr([str(w.message) for w in caught]).encode(),
        ".repr": type(mcmc).__name__.encode() + repr(kernel).split(" at 0x")[0].encode(),
    }
    with redirect_stdout(io.StringIO()) as summary:
        mcmc.print_summary()
    found[".summary"] = summary.getvalue().encode()
    found |= flatten(".samples", mcmc.get_samples(group_by_chain=True))
    found |= flatten(".extra_fields", mcmc.get_extra_fields(group_by_chain=True))
    found |= flatten(".last_state", mcmc.last_state)
    found |= flatten(".post_warmup_state", mcmc.post_warmup_state)
    found |= flatten(".mcmc", mcmc)
    report, drawn = _report(mcmc.privacy), mcmc._described.drawn
    texts = {note.text for note in drawn}
    report["notes"] = [note for note in report["notes"] if note not in texts]
    found |= {f".privacy.{k}": repr(v).encode() for k, v in report.items()}
    found[".privacy.drawn"] = repr(drawn).encode()
    copy = pickle.loads(pickle.dumps(mcmc))
    found |= {
        f".pickled{place[len('.mcmc') :]}".replace("_states_flat", "samples").replace(
            "_states", "samples"
        ): value
        for place, value in flatten(".mcmc", copy).items()
    }
    idata = ndp.from_numpyro(mcmc)
    for group in group_names(idata):
        found |= dataset_bytes(f".idata.{group}", idata[group])
    return found


def _report(report):
    volatile = ("created_at", "ledger", "versions")
    return {k: v for k, v in report.to_dict().items() if k not in volatile}


def _without_notes(text):
    # Printed at the end of a run. Those of the run are compared in its report; those that are
    # computed from the released draws may differ as these do.
    return re.sub(r"^note  .*\n(?: {6}.*\n)*", "", text, flags=re.MULTILINE)


def _without_clock(text):
    # tqdm prints elapsed time and speed in brackets; they are timing, not content. So is what
    # programs this process had compiled before.
    frames = (part for line in text.splitlines() for part in line.split("\r"))
    shown = (
        f"{part.split('|')[0]} {part.split('ε')[-1] if 'ε' in part else ''}".strip()
        for part in frames
    )
    return "\n".join(frame for frame in shown if frame != "compiling:   0%")


def leaks(one, other):
    """Places that differ between two runs and do not hold released draws."""
    places = sorted(set(one) | set(other))
    differing = [p for p in places if one.get(p) != other.get(p)]
    derived = one.get(".derived", b"").decode().split(",")
    released = RELEASED + tuple(
        f"{state}.{field}" for state in _STATES for field in derived if field
    )
    return [p for p in differing if not p.startswith(released)]
