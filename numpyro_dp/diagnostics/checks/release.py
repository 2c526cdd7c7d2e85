"""The one charged run of every check: one vector a record, one noisy sum."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jaxtyping import Array, Float

from numpyro_dp import _validate
from numpyro_dp._arrays import unplaced
from numpyro_dp._quick_compile import lightly_jitted
from numpyro_dp.accounting import Accountant, Budget, PrivacyReport
from numpyro_dp.diagnostics.checks.question import Draws, Question, require_resolved
from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.execution import arguments
from numpyro_dp.execution.account import Account
from numpyro_dp.execution.calibration import planned_sum
from numpyro_dp.execution.facts import assumed_public, sum_facts
from numpyro_dp.execution.keys import as_typed_keys, of_default_kind
from numpyro_dp.families.outcome import OfOneRecord, require_of_one_record
from numpyro_dp.mechanisms import PrivateSum
from numpyro_dp.model.names import quoted
from numpyro_dp.model.private_model import PrivateModel, private_model

# Records times draws that are looked at side by side.
_AT_ONCE = 1 << 20

Q = TypeVar("Q", bound=Question)


@dataclass(frozen=True, eq=False)
class Payment:
    """Who pays for a check, and how much.

    :param called: what the user called.
    :param privacy: its budget; or
    :param noise_multiplier: standard deviation of the noise over the norm of a record's vector.
    :param accountant: the ledger that must agree.
    :param allow_unresolved: release what tells next to nothing.
    :param secure: whether the noise comes from keys of the operating system.
    """

    called: str
    privacy: Budget | None
    noise_multiplier: float | None
    accountant: Accountant | None
    allow_unresolved: bool
    secure: bool


class Subject(NamedTuple):
    """A model, its posterior, and the records it is held against.

    - **model**: a NumPyro model.
    - **posterior_samples**: its draws, as the user gave them.
    - **args**, **kwargs**: the model's arguments, records among them.
    - **data_plate**: name of the private plate, where several enclose the outcome.
    """

    model: Callable[..., Any]
    posterior_samples: Any
    args: tuple
    kwargs: Mapping[str, Any]
    data_plate: str | None


class Answer(NamedTuple):
    """What was released.

    - **mean**: of the records' vectors.
    - **noise_sd**: standard deviation of the noise in each of its numbers.
    - **num_records**: public.
    - **privacy**: of this check.
    """

    mean: Float[np.ndarray, " dim"]
    noise_sd: float
    num_records: int
    privacy: PrivacyReport


def answered(
    payment: Payment, rng_key: Any, subject: Subject, ask: Callable[[PrivateModel, Draws], Q]
) -> tuple[Q, Answer]:
    """Prepare a question, charge it, and release its sum.

    :param ask: makes the question of the split model and its draws, all of them public; refuses
        what cannot be asked.
    """
    account = Account(payment.called, payment.accountant, secure=payment.secure)
    model, samples, args, kwargs, plate = subject
    with account.opened(payment.called, rng_key, args, kwargs, samples) as run:
        noise = arguments.checked_noise(payment.privacy, payment.noise_multiplier)
        user_key = of_default_kind(as_typed_keys(rng_key, 1))
        key, made_up = random.fold_in(user_key, 0), random.fold_in(user_key, 1)
        if account.private_size:
            raise UnsupportedModelError(
                f"{payment.called} is a mean over held-out records and divides by their number, "
                "which is private under add_remove: use zero_out or replace_one"
            )
        split = private_model(model, args, dict(kwargs), data_plate=plate)
        draws = posterior_draws(split, samples)
        question = ask(split, draws)
        judged = _judged(question, draws)
        mechanism = _planned(account, payment, noise, question, _size(draws))
        # Past this, rounding would shrink vectors, and so the mean of them.
        shown = mechanism.unshrunk / question.bound
        # No name for the key of the noise: it would outlive an exception, in its traceback. Last,
        # for what refuses the records must do so before the charge.
        total = _summed(
            *(mechanism, judged, shown, made_up, draws),
            [*split.records(args, dict(kwargs), padded=True), split.row_numbers()],
            run.charge_once(mechanism, key, of=draws),
        )
    size = split.num_records
    facts = sum_facts(
        mechanism,
        question.summands,
        sampler="every record",
        released=question.released,
        unit=split.unit,
        num_records=size,
        assumed_public=assumed_public(
            size,
            "the posterior draws, which were released before",
            "the model, and every option of the check",
            arguments=split.public_inputs,
        ),
    )
    return question, Answer(
        mean=np.asarray(total, float) / (shown * size),
        noise_sd=mechanism.noise_multiplier * mechanism.clip_norm / (shown * size),
        num_records=size,
        privacy=account.report(facts, delta=account.delta(payment.privacy)),
    )


@dataclass(frozen=True)
class _Judged:
    """The program of a record's vector that was judged, and that runs: no other trace is made.

    Equal to another that computes the same, so that a second check does not compile again.
    """

    found: OfOneRecord = field(compare=False)
    computes: Hashable

    def __call__(self, record: list[Array], draws: Draws, key: Array) -> Float[Array, " dim"]:
        (vector,) = self.found.program([*record, *jax.tree.leaves(draws), key])
        return vector


def _judged(question: Question, draws: Draws) -> _Judged:
    """Refuse a question whose vector could see more than one record, or show one."""

    def vector(record: list[Array], draws: Draws, key: Array) -> Array:
        return question.vector(draws, record, key)

    structs = jax.eval_shape(lambda: (draws, random.key(0)))
    found = require_of_one_record(question.model, "the check", vector, *structs)
    return _Judged(found, found.computes)


def _planned(
    account: Account,
    payment: Payment,
    noise_multiplier: float | None,
    question: Question,
    num_draws: int,
) -> PrivateSum:
    size, delta = question.model.num_records, account.delta(payment.privacy)
    shape = {
        "num_records": size,
        "shards": question.model.shards,
        "dim": question.dim,
        "clip_norm": question.bound,
        "microbatch_size": min(size, max(_AT_ONCE // num_draws, 1)),
    }

    def planned(noise: float | Budget) -> PrivateSum:
        return planned_sum(
            sampling_rate=1.0,
            num_steps=1,
            delta=delta,
            relation=account.relation,
            noise=noise,
            **shape,
        )

    mechanism = planned(arguments.given_noise(payment.privacy, noise_multiplier))
    if not payment.allow_unresolved:
        require_resolved(question, planned, mechanism, account.relation, delta)
    return mechanism


@partial(lightly_jitted, static_argnums=(0, 1, 2))
def _summed(
    mechanism: PrivateSum,
    judged: _Judged,
    shown: float,
    made_up: Any,
    draws: Draws,
    records: list[Array],
    key: Any,
) -> Float[Array, " dim"]:
    """The noisy sum over records, numbered, of ``shown`` times their vectors."""

    def vector(leaves: list[Array]) -> Float[Array, " dim"]:
        *record, row = leaves
        return shown * judged(record, draws, random.fold_in(made_up, row[0]))

    return mechanism.release(key, vector, records)


def posterior_draws(model: PrivateModel, samples: Any) -> Draws:
    """The draws of every latent, checked.

    :param samples: draws by site, of shape (draws, ...), or an object whose ``get_samples()``
        returns them.
    :raises ValueError: a latent is missing, of another shape, or not finite.
    """
    get = getattr(samples, "get_samples", None)
    given = get() if callable(get) else samples
    if not isinstance(given, Mapping):
        raise ValueError(
            "posterior_samples must be draws by site, such as mcmc.get_samples(), got "
            f"{_validate.shown(samples)}"
        )
    sites = model.programs.constrained
    missing = [name for name in sites if name not in given]
    if missing:
        raise ValueError(
            f"posterior_samples has no draws of latent site(s) {quoted(missing)} of the model"
        )
    draws = {name: _of_site(name, given[name], struct) for name, struct in sites.items()}
    counts = {len(values) for values in draws.values()}
    if len(counts) != 1 or counts == {0}:
        raise ValueError(
            "posterior_samples must hold equally many draws of every site, and at least one"
        )
    return draws


def _of_site(name: str, values: Any, struct: jax.ShapeDtypeStruct) -> Array:
    arguments.require_numbers(f"posterior_samples[{name!r}]", values, "(draws, ...)")
    if values.ndim != len(struct.shape) + 1 or values.shape[1:] != struct.shape:
        raise ValueError(
            f"posterior_samples[{name!r}] must have shape (draws{_listed(struct.shape)}), got "
            f"{values.shape}: give get_samples() of one model, chains not grouped"
        )
    drawn = jnp.asarray(unplaced(values), struct.dtype)
    if not bool(jnp.all(jnp.isfinite(drawn))):
        raise ValueError(
            f"posterior_samples[{name!r}] holds draws that are not finite: nothing can be "
            "predicted from them"
        )
    return drawn


def _listed(shape: tuple[int, ...]) -> str:
    return "".join(f", {length}" for length in shape)


def _size(draws: Draws) -> int:
    return len(next(iter(draws.values())))
