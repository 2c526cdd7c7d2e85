"""What a record's outcome might have been, given its inputs: every value of it, or some draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax, random
from jaxtyping import Array, Float

from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.model.guided.chosen_outcomes import chosen_outcomes
from numpyro_dp.model.guided.fixed_outcomes import fixed_outcomes
from numpyro_dp.model.guided.outside import within_laws
from numpyro_dp.model.guided.own_samples import Unobserved, WithOutcomes, require_own_samples
from numpyro_dp.model.guided.places import Place
from numpyro_dp.model.guided.record_scale import record_scale
from numpyro_dp.model.jaxprs import Pruned, prune, trace_program
from numpyro_dp.model.messages import explained
from numpyro_dp.model.names import quoted
from numpyro_dp.model.plates import RowRun, Trace, row_sites
from numpyro_dp.model.programs import require_no_closure, require_one_record, require_own_gradient
from numpyro_dp.model.records import Layout
from numpyro_dp.model.structure import Structure, enumeration_dim, key_struct

_MOST, _DRAWS = 64, 16

Scored = tuple[Float[Array, " outcomes"], Float[Array, " outcomes"]]


class Listed(NamedTuple):
    """Programs of one record that take values of parameters and latents, then its arrays.

    - **terms**: log likelihood of the record with each outcome in turn, shape (outcomes,).
    - **law**: log probability of each outcome at the record's inputs, shape (outcomes,).
    - **scale**: what the record counts for, a number; ``None`` where each counts once.
    - **limits**: whether it shows what each of its laws can have, those of which that is known.
    """

    terms: Pruned
    law: Pruned
    scale: Pruned | None
    limits: tuple[Pruned, ...] = ()

    @property
    def number(self) -> int:
        """Outcomes that a record may have."""
        return self.terms.out_shapes[0][0]

    def scored(self, values: list[Array], record: list[Array], key: Any) -> Scored:
        """Mean term of each outcome over the draws of ``values``, and its probability."""

        def one(values: list[Array]) -> Scored:
            inputs = [*values, *record]
            return self.terms(inputs)[0], self.law(inputs)[0]

        terms, law = jax.vmap(one)(values)
        return terms.mean(axis=0), jnp.exp(law).mean(axis=0)


class Simulated(NamedTuple):
    """Programs of one record that take values of parameters and latents, then its arrays.

    - **draws**: outcomes drawn from the model at the record's inputs; takes a key too.
    - **term**: log likelihood of the record with one given outcome, which it takes too. One, so
      that its gradient is that outcome's alone: in a Jacobian of all, a special function of each
      (``NegativeBinomial2``'s digamma) is worked out for every row of it.
    - **scale**, **limits**: as of :class:`Listed`.
    """

    draws: Pruned
    term: Pruned
    scale: Pruned | None
    limits: tuple[Pruned, ...] = ()

    @property
    def number(self) -> int:
        """Outcomes of a record that are drawn."""
        return self.draws.out_shapes[0][0]

    def scored(self, values: list[Array], record: list[Array], key: Any) -> Scored:
        """Mean term of each drawn outcome over the draws of ``values``, and equal weights."""
        particles = values[0].shape[0]

        def drawn(values: list[Array], key: Any) -> list[Array]:
            return self.draws([*values, *record, key])

        # Outcomes are drawn at the parameters, not moved along with them: a sampler's own
        # derivatives, which nobody judged, never run.
        still = lax.stop_gradient(values)
        by_particle = jax.vmap(drawn)(still, random.split(key, particles))
        turn = jnp.arange(_DRAWS) % particles
        outcomes = [each[turn, jnp.arange(_DRAWS)] for each in by_particle]

        def term(values: list[Array], outcome: list[Array]) -> Array:
            return self.term([*values, *record, *outcome])[0]

        of_all = jax.vmap(term, (None, 0))
        terms = jax.vmap(of_all, (0, None))(values, outcomes)
        return terms.mean(axis=0), jnp.full(_DRAWS, 1 / _DRAWS, terms.dtype)


Outcomes = Listed | Simulated


class Asker(NamedTuple):
    """Who asks what else might have been observed, and what its user may take where it cannot.

    - **name**: the subject of a refusal.
    - **instead**: ends it, after "; ".
    """

    name: str
    instead: str


CENTRED_CLIP = Asker("clip='centred'", "use clip='plain'")
SCORING = Asker(
    "a release of scores",
    "DPSVI with optim, clip_norm and clip='plain' asks nothing, nor does DPSGLD with step_size, "
    "clip_norm and noise_multiplier of your own",
)


# A plain clip asks nothing, and put the shape of a right-censored Weibull law 3 to 30 of its own
# sds off: no way out.
_CENSORED = (
    "where only a time and a flag are known, write a law of both, which says how people are lost, "
    "too (docs/howto/models-by-name.md, survival)"
)


class _OneRecord(NamedTuple):
    """A model about to be run on one record, with other outcomes than those observed."""

    model: Callable[..., Any]
    layout: Layout
    plate: str
    num_records: int
    sites: tuple[str, ...]
    enum_dim: int
    at_once: bool
    asker: Asker
    # Arrays in which outcomes are put in turn, in the order of the model; none where each is put
    # at its site alone.
    places: Mapping[str, Place] = {}
    # By site another whose value says whether it is asked.
    says: Mapping[str, str] = {}

    def can_be_listed(self, values: Any, arrays: list[Any]) -> bool:
        """Whether there is one outcome, a single number of few possible values."""
        if len(self.sites) > 1 or self.enum_dim:
            return False
        fn = self._law(values, arrays)
        if not fn.has_enumerate_support or fn.event_shape:
            return False
        try:
            shape = fn.enumerate_support(expand=True).shape
        except (NotImplementedError, jax.errors.ConcretizationTypeError):
            # Counts out of a total that is the record's own.
            return False
        return shape[0] <= _MOST and math.prod(shape[1:]) == 1

    def listed(self, values: Any, arrays: list[Any]) -> tuple[jax.Array, jax.Array]:
        """Every outcome, and its log probability."""
        fn = self._law(values, arrays)
        listed = fn.enumerate_support(expand=True)
        return listed, fn.log_prob(listed).reshape(listed.shape[0])

    def _law(self, values: Any, arrays: list[Any]) -> Any:
        arguments = self.layout.fill(arrays)
        found = row_sites(self.model, self.plate, self.num_records, values, arguments, None, 1)
        return found[self.sites[0]]["fn"]

    def require_own_samples(self, values: Any, arrays: list[Any]) -> None:
        """Refuse sites whose draws are not of their density."""
        found = self._sites_of(values, arrays, random.key(0))
        for name in self.sites:
            require_own_samples(found[name], self.asker.name, _CENSORED)

    def _sites_of(self, values: Any, arrays: list[Any], key: jax.Array) -> Trace:
        arguments = self.layout.fill(arrays)
        return row_sites(self.model, self.plate, self.num_records, values, arguments, key, 1)

    def require_observed(self, values: Any, structs: list[Any]) -> None:
        """Refuse sites that observe the same of all, as a term of the likelihood does."""
        fixed = fixed_outcomes(partial(self._sites_of, key=random.key(0)), values, structs)
        if fixed:
            raise UnsupportedModelError(
                f"what {quoted(fixed)} observes is the same of all who are asked: it says how "
                f"probable something is, while {self.asker.name} draws what else might have been "
                "observed, which never was: the answer would lie far off. Observe what the "
                f"records show; {_CENSORED}; a plain clip is no way round"
            )

    def in_turn(self, values: Any, structs: list[Any]) -> _OneRecord:
        """This, where masks follow the outcomes that are drawn."""
        sites_of = partial(self._sites_of, key=random.key(0))
        chosen = chosen_outcomes(sites_of, values, structs)
        for name, other in chosen.instead.items():
            raise UnsupportedModelError(
                f"{quoted([name])} is asked of records of which {quoted([other])} is not, and its "
                f"law reads what {quoted([other])} observes, as of times that may be censored, "
                f"while {self.asker.name} draws what might have been observed of each by itself: "
                f"the answer would lie far off. {_CENSORED[0].upper()}{_CENSORED[1:]}; a plain "
                "clip is no way round"
            )
        if chosen.asked and not (chosen.places or chosen.says):
            raise UnsupportedModelError(
                f"whether a record is asked {quoted(chosen.asked)} hangs on another of its "
                f"outcomes (a mask reads it), and {self.asker.name} draws what might have been "
                "observed: the answer may lie far off, since the mask does not follow. Pass each "
                "outcome as an argument or a column of one, not computed in the model (as its "
                "logarithm is), that a site observes as it is, as in `obs=paid`, "
                "`handlers.mask(mask=paid == 1)` and `obs=cost`; and who is missing as another "
                "argument; "
                f"{self.asker.instead}"
            )
        return self._replace(places=chosen.places, says=chosen.says)

    def _in_turn(self, values: Any, arrays: list[Any], key: jax.Array) -> list[jax.Array]:
        # One key for the record's own latents, which all of its outcomes share.
        latent, own = random.split(key)
        shown, outcomes = list(arrays), []
        for k, (name, place) in enumerate(self.places.items()):

            def turn(
                _: Any, at: tuple, name: str = name, k: int = k, place: Place = place
            ) -> tuple:
                site = self._sites_of(values, at[0], latent)[name]
                drawn = site["fn"].sample(random.fold_in(own, k))
                drawn = jnp.reshape(drawn, jnp.shape(site["value"]))
                return place.put(drawn, at[0]), drawn

            shown, drawn = turn(0, (shown, None))
            # The same key each time, so that what a number follows stays.
            shown, drawn = lax.fori_loop(1, place.turns, turn, (shown, drawn))
            outcomes.append(drawn)
        return outcomes

    def draws(self, values: Any, arrays: list[Any], key: jax.Array) -> list[jax.Array]:
        """Outcomes drawn from the model at the record's inputs, a leading axis for the draws."""
        model = Unobserved(self.model, self.sites)

        def one(key: jax.Array) -> list[jax.Array]:
            arguments = self.layout.fill(arrays)
            found = row_sites(model, self.plate, self.num_records, values, arguments, key, 1)
            return [found[site]["value"] for site in self.sites]

        try:
            if self.places:
                turn = partial(self._in_turn, values, arrays)
                return jax.vmap(turn)(random.split(key, _DRAWS))
            if self.at_once and len(self.sites) == 1 and not self.enum_dim:
                # One key for all draws of a record: a sampler that loops splits it once a turn.
                return [self._law(values, arrays).sample(key, (_DRAWS,))]
            return jax.vmap(one)(random.split(key, _DRAWS))
        except NotImplementedError as error:
            raise UnsupportedModelError(
                f"{self.asker.name} draws what might have been observed at {quoted(self.sites)}, "
                f"and NumPyro cannot sample from that distribution; {self.asker.instead}"
            ) from error

    def term(self, values: Any, arrays: list[Any], outcomes: list[jax.Array]) -> jax.Array:
        """Log likelihood of the record with another outcome of each site."""
        if self.places:
            shown = list(arrays)
            for place, outcome in zip(self.places.values(), outcomes, strict=True):
                shown = place.put(outcome, shown)
            # A site itself sees the fraction of what was drawn.
            model = WithOutcomes(self.model, dict(zip(self.places, outcomes, strict=True)))
            run = RowRun(model, self.plate, self.num_records, self.enum_dim)
            return run(values, self.layout.fill(shown), random.key(0), 1)
        model = WithOutcomes(self.model, dict(zip(self.sites, outcomes, strict=True)), self.says)
        run = RowRun(model, self.plate, self.num_records, self.enum_dim)
        return run(values, self.layout.fill(arrays), random.key(0), 1)

    def programs(self, values: Mapping[str, Any], *, drawn: bool) -> Outcomes:
        """Trace and judge; outcomes that cannot be listed are drawn, or refused."""
        structs = self.layout.structs(1)
        possible: list[bool] = []
        with explained(self.plate, 1):
            self.require_observed(values, structs)
            jax.eval_shape(lambda *at: possible.append(self.can_be_listed(*at)), values, structs)
        more = self.scale_and_limits(values, structs) if self.asker is SCORING else (None,)
        if possible[0]:
            return Listed(
                self._traced(self.listed_terms, values, structs),
                self._traced(lambda *at: self.listed(*at)[1], values, structs),
                *more,
            )
        if not drawn:
            raise UnsupportedModelError(
                f"the outcomes of {quoted(self.sites)} cannot be listed: say clip='centred' for "
                "draws of them"
            )
        with explained(self.plate, 1):
            jax.eval_shape(self.require_own_samples, values, structs)
            way = self.in_turn(values, structs)
            drawn_structs = jax.eval_shape(way.draws, values, structs, key_struct())
            one = [jax.ShapeDtypeStruct(each.shape[1:], each.dtype) for each in drawn_structs]
        return Simulated(
            self._traced(way.draws, values, structs, key_struct(), differentiated=False),
            self._traced(way.term, values, structs, one),
            *more,
        )

    def scale_and_limits(
        self, values: Any, structs: list[Any]
    ) -> tuple[Pruned | None, tuple[Pruned, ...]]:
        """What ``handlers.scale`` says that the record counts for, if it does, and whether it
        shows what its laws can have."""

        def sites_of(values: Any, arrays: list[Any]) -> list[Any]:
            found = self._sites_of(values, arrays, random.key(0))
            return [found[name] for name in self.sites]

        with explained(self.plate, 1):
            scale = record_scale(sites_of, values, structs, self.sites, *self.asker)
            limits = () if self.enum_dim else within_laws(sites_of, values, structs)
        for program in limits if scale is None else (scale, *limits):
            require_one_record(program)
            require_no_closure(program, self.layout, self.num_records)
        return scale, limits

    def listed_terms(self, values: Any, arrays: list[Any]) -> jax.Array:
        """Log likelihood of the record with every outcome in turn."""
        listed = [self.listed(values, arrays)[0]]
        return jax.vmap(lambda outcome: self.term(values, arrays, outcome))(listed)

    def _traced(
        self, part: Callable[..., Any], *structs: Any, differentiated: bool = True
    ) -> Pruned:
        with explained(self.plate, 1):
            program = trace_program(part, *structs)
        pruned = prune(program)
        require_one_record(pruned)
        require_no_closure(pruned, self.layout, self.num_records)
        if differentiated:
            values = len(jax.tree.leaves(structs[0]))
            require_own_gradient(pruned, self.layout, self.num_records, values)
        return pruned


def possible_outcomes(
    model: Callable[..., Any],
    layout: Layout,
    structure: Structure,
    plate: str,
    num_records: int,
    values: Mapping[str, Any],
    *,
    private_size: bool,
    drawn: bool,
    asker: Asker,
    at_once: bool = False,
) -> Outcomes:
    """Trace the outcomes of one record: listed where that can be, else ``drawn`` from the model.

    :param asker: for whom, which a refusal names.
    :param at_once: take all draws of a record from one key, which is quicker.
    :raises UnsupportedModelError: where the plate has no observed site, a factor or continuous
        latents of its own, where its outcomes cannot be drawn, or where they would have to be and
        the number of records is private.
    """
    observed = structure.inside(plate, "observed")
    others = structure.inside(plate, "latent", "factor")
    if others or not observed:
        factors = structure.inside(plate, "factor")
        site = (
            "observe a distribution in place of the factor: of a mixture MixtureSameFamily, with "
            "weights handlers.scale, of times that may be censored a law of time and flag "
            "(docs/howto/models-by-name.md, survival), which a plain clip is no way round. Else "
        )
        what = quoted(factors) if factors else quoted(others) if others else "nothing observed"
        raise UnsupportedModelError(
            f"{asker.name} draws from the model what else a record might have shown, and in plate "
            f"`{plate}` there is {what}, of which nothing can be drawn; "
            f"{site if factors else ''}{asker.instead}"
        )
    record = _OneRecord(
        model, layout, plate, num_records, observed, enumeration_dim(structure), at_once, asker
    )  # fmt: skip
    outcomes = record.programs(dict(values), drawn=drawn)
    if private_size and isinstance(outcomes, Simulated):
        raise UnsupportedModelError(
            f"the outcomes of {quoted(observed)} can only be drawn, with a key from the record's "
            "row number, which under add_remove depends on who else is there; "
            f"{asker.instead}, or zero_out or replace_one"
        )
    return outcomes
