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

# By new package: old module = new one in there.
_MOVED = {
    "accounting": ("accounting.figures=rounding"),
    "accounting.bounds": (
        "accounting.acceptance=accept_families accounting.binary=binary accounting.bits=bits "
        "accounting.directional=directional accounting.domination=domination "
        "accounting.perturbation=perturbation accounting.smooth=smooth"
    ),
    "accounting.events": (
        "accounting.fields=fields accounting.releases=perturbation "
        "accounting.statements=sampling accounting.words=describe"
    ),
    "accounting.ledger": ("accounting.ledger_file=file"),
    "accounting.pld": (
        "accounting.grid=grid accounting.loss=composition accounting.mixtures=mixtures "
        "accounting.profiles=profiles accounting.renyi=renyi"
    ),
    "accounting.report": ("accounting.rendering=render accounting.risk=risk"),
    "diagnostics": ("mcmc.clipping=clipping_rate"),
    "diagnostics.audit": (
        "diagnostics.likelihood_ratio=likelihood_ratio diagnostics.lower_bound=lower_bound "
        "diagnostics.neighbours=neighbours"
    ),
    "diagnostics.plan": (
        "diagnostics.affordable=affordable diagnostics.bias=bias diagnostics.channel=signal "
        "diagnostics.dress_rehearsal=rehearsed_fit diagnostics.made_up=synthetic_records "
        "diagnostics.rehearsal=rehearsal diagnostics.remedies=remedies "
        "diagnostics.steps=steps diagnostics.subject=subject"
    ),
    "execution": (
        "mechanisms.account=account mechanisms.arguments=arguments mechanisms.keys=keys "
        "mechanisms.planning=calibration mechanisms.wording=facts svi.progress=progress"
    ),
    "families": (
        "_glm_loss=losses _glm_prior=prior _glm_trace=predictor glm=glm hinge=hinge "
        "svi.guides.apart=independence svi.guides.conjugate_trace=sites"
    ),
    "mcmc": ("mcmc.ready=setup mcmc.statement=report"),
    "mcmc.metropolis": (
        "mcmc.charges=privacy_filter mcmc.metropolis_plan=plan mcmc.metropolis_presets=kernel "
        "mcmc.metropolis_step=step mcmc.proposals=proposals"
    ),
    "mcmc.posterior": ("mcmc.posterior_sample=ops"),
    "mcmc.sgmcmc": (
        "mcmc.fisher_sum=sgfs mcmc.gradient=kernel mcmc.layout=kernel mcmc.momentum=momentum "
        "mcmc.noisy_sum=integrator mcmc.notes=integrator mcmc.relaxation=relaxation "
        "mcmc.schedules=schedules mcmc.sgfs=sgfs mcmc.sghmc=sghmc mcmc.sgld=sgld "
        "mcmc.sgnht=sgnht"
    ),
    "mechanisms": ("mechanisms.block_sum=blocks mechanisms.words=uint64"),
    "mechanisms.accept": (
        "mechanisms.accept_sum=log_ratio mechanisms.accept_table=tables "
        "mechanisms.fixed_point=fixed_point mechanisms.minibatch=minibatch "
        "mechanisms.pick=pick"
    ),
    "model": (
        "_additive=additivity _causes=messages _idle=idle _initial=initial _loads=closures "
        "_made_up=synthetic _named=closures _plate=plates _programs=programs _prune=jaxprs "
        "_split=split _structure=structure _unnumbered=redaction records=records"
    ),
    "model.guided": ("_elbo=elbo _guide=guides _outcomes=outcomes variational=model"),
    "svi.dpsvi": (
        "svi.checks=checks svi.curvature=curvature svi.elbo=elbo svi.fit=fit "
        "svi.metered=charged svi.plan=plan svi.report=report svi.settings=settings "
        "svi.start=start"
    ),
    "svi.guides.conjugate": (
        "svi.guides.conjugate_counts=counts svi.guides.conjugate_family=family "
        "svi.guides.conjugate_mixture=mixture svi.guides.conjugate_reading=recognise "
        "svi.guides.conjugate_regression=regression"
    ),
    "svi.guides.lda": (
        "svi.guides.lda_document=document svi.guides.lda_model=recognise "
        "svi.guides.lda_programme=statistics svi.guides.lda_shrink=shrinkage"
    ),
    "svi.guides.polya_gamma": (
        "svi.guides.polya_gamma_base=base svi.guides.polya_gamma_designs=designs "
        "svi.guides.polya_gamma_maths=algebra svi.guides.polya_gamma_model=recognise"
    ),
    "svi.guides.sigmoid_belief": (
        "svi.guides.sigmoid_belief_model=recognise svi.guides.sigmoid_belief_programme=statistics"
    ),
    "svi.vips": ("svi.programme=statistics svi.releases=releases"),
}
_NEW = {
    f"numpyro_dp.{old}": f"numpyro_dp.{package}.{new}"
    for package, moved in _MOVED.items()
    for old, new in (pair.split("=") for pair in moved.split())
}

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
        words, kernels = (_module(name) for name in ("execution.facts", "mcmc.kernel"))
        public = words.assumed_public(num_records, kernels.OPTIONS, arguments=public_inputs)
        told = replace(
            facts, unit=words.slice_of(plate), num_records=num_records, assumed_public=public
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
