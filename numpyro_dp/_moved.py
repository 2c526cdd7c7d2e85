"""Old names of modules, so that results which were pickled before files moved still load.

Kept for one version: pickles that are written now hold the new names.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# Modules whose objects a stored result or kernel may hold: old name, and where they are now.
_MOVED = {
    "_causes": "model.messages",
    "_guide": "model.guided.guides",
    "_outcomes": "model.guided.outcomes",
    "_structure": "model.structure",
    "accounting.ledger_file": "accounting.ledger.file",
    "accounting.releases": "accounting.events.perturbation",
    "accounting.statements": "accounting.events.sampling",
    "diagnostics.bias": "mcmc.sgmcmc.bias",
    "glm": "families.glm",
    "hinge": "families.hinge",
    "mcmc.charges": "mcmc.metropolis.privacy_filter",
    "mcmc.clipping": "diagnostics.clipping_rate",
    "mcmc.fisher_sum": "mcmc.sgmcmc.sgfs",
    "mcmc.gradient": "mcmc.sgmcmc.kernel",
    "mcmc.layout": "mcmc.sgmcmc.kernel",
    "mcmc.metropolis_plan": "mcmc.metropolis.plan",
    "mcmc.metropolis_presets": "mcmc.metropolis.presets",
    "mcmc.metropolis_step": "mcmc.metropolis.step",
    "mcmc.noisy_sum": "mcmc.sgmcmc.integrator",
    "mcmc.notes": "mcmc.sgmcmc.integrator",
    "mcmc.posterior_sample": "mcmc.posterior.ops",
    "mcmc.schedules": "mcmc.sgmcmc.schedules",
    "mcmc.sgfs": "mcmc.sgmcmc.sgfs",
    "mcmc.sghmc": "mcmc.sgmcmc.sghmc",
    "mcmc.sgld": "mcmc.sgmcmc.sgld",
    "mcmc.sgnht": "mcmc.sgmcmc.sgnht",
    "mcmc.statement": "mcmc.report",
    "mechanisms.account": "execution.account",
    "mechanisms.words": "mechanisms.uint64",
    "records": "model.records",
    "svi.guides.conjugate_counts": "svi.guides.conjugate.counts",
    "svi.guides.conjugate_family": "svi.guides.conjugate.family",
    "svi.guides.conjugate_mixture": "svi.guides.conjugate.mixture",
    "svi.guides.conjugate_reading": "svi.guides.conjugate.recognise",
    "svi.guides.conjugate_regression": "svi.guides.conjugate.regression",
    "svi.guides.lda_document": "svi.guides.lda.document",
    "svi.guides.lda_model": "svi.guides.lda.recognise",
    "svi.guides.lda_programme": "svi.guides.lda.statistics",
    "svi.guides.polya_gamma_base": "svi.guides.polya_gamma.base",
    "svi.guides.polya_gamma_designs": "svi.guides.polya_gamma.designs",
    "svi.guides.polya_gamma_maths": "svi.guides.polya_gamma.algebra",
    "svi.guides.polya_gamma_model": "svi.guides.polya_gamma.recognise",
    "svi.guides.sigmoid_belief_model": "svi.guides.sigmoid_belief.recognise",
    "svi.guides.sigmoid_belief_programme": "svi.guides.sigmoid_belief.statistics",
    "svi.elbo": "svi.dpsvi.elbo",
    "svi.metered": "svi.dpsvi.charged",
    "svi.programme": "svi.vips.statistics",
    "svi.settings": "svi.dpsvi.settings",
    "variational": "model.guided.model",
}
_NEW = {f"numpyro_dp.{old}": f"numpyro_dp.{new}" for old, new in _MOVED.items()}

# Classes of stored objects that have another name now, by old module.
_RENAMED = {
    "svi.settings": {"Settings": "DPSVISettings"},
    "svi.guides.polya_gamma_base": {"Known": "KnownWeights", "Settings": "PolyaGammaSettings"},
    "svi.guides.lda_programme": {"Known": "KnownTopics"},
    "svi.guides.sigmoid_belief_programme": {"Known": "KnownUnits"},
}


class _Alias(MetaPathFinder, Loader):
    """Finds a module by its old name; its attributes are those of the new one."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in _NEW else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return ModuleType(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        renamed = _RENAMED.get(module.__name__.removeprefix("numpyro_dp."), {})
        found = formerly(_NEW[module.__name__], renamed)
        if module.__name__ == "numpyro_dp.mcmc.statement":
            module.Described = _Described  # ty: ignore[missing-attribute]
        module.__getattr__ = found  # ty: ignore[invalid-assignment]


def formerly(module: str, renamed: Mapping[str, str] | None = None) -> Callable[[str], Any]:
    """``__getattr__`` of a package that was a module, whose contents are in ``module`` now."""
    names = renamed or {}

    def found(name: str) -> Any:
        # Names in lower case are those of submodules, which are asked for before they are there.
        if name.startswith("__") or (name.islower() and not name.startswith("_")):
            raise AttributeError(name)
        return getattr(import_module(module), names.get(name, name))

    return found


def install() -> None:
    """Let old names be found, after all others."""
    if not any(isinstance(each, _Alias) for each in sys.meta_path):
        sys.meta_path.append(_Alias())


def _module(name: str) -> Any:
    return import_module(f"numpyro_dp.{name}")


class _Described:
    """What a run's report was made from: its facts lacked unit, size and public arguments."""

    def __new__(
        cls,
        facts: Any,
        plate: str,
        num_records: int | None,
        public_inputs: tuple[str, ...],
        steps_per_sample: int,
        drawn: tuple = (),
    ) -> Any:
        # By name, as everything here: nothing may depend on what depends on it.
        names = ("model.rows_plate", "execution.facts", "mcmc.kernel")
        units, words, kernels = (_module(name) for name in names)
        public = words.assumed_public(num_records, kernels.OPTIONS, arguments=public_inputs)
        told = replace(
            facts, unit=units.slice_of(plate), num_records=num_records, assumed_public=public
        )
        return _module("mcmc.report").Described(told, steps_per_sample, drawn)


def mcmc_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state of an ``MCMC`` object that kept its charges itself."""
    if "_account" in state:
        return dict(state)
    kept = {
        name: state[name]
        for name in state
        if name not in ("_accountant", "_charges", "_conditions", "_secure", "_lock")
        and name not in ("_steps_run", "_warmup_run")
    }
    owner = _module("execution.account")
    account = owner.Account("MCMC", state["_accountant"], secure=state["_secure"])
    described = state["_described"]
    overflow = 0.0 if described is None else described.facts.overflow_delta
    # Only the sums were kept: they stand with the first charge.
    steps, warmup = state["_steps_run"], state["_warmup_run"]
    known = [(steps, overflow * steps, warmup, tuple(state["_conditions"]))]
    for label, event in state["_charges"]:
        count, distance, before, conditions = known.pop() if known else (0, 0.0, 0, ())
        charge = owner.Charge(event, count, distance, label, before, conditions)
        account.charges.append(charge)
    return {**kept, "_account": account}
