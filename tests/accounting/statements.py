"""Rows of vectors.json for accept bits, draws and perturbations, as events."""

from numpyro_dp.accounting.events import (
    BarkerBit,
    ComposedDpEvent,
    DirectionalBarkerBit,
    GaussianDpEvent,
    LangevinLastIterate,
    LogConcaveDraw,
    MinibatchBit,
    NoisyBarkerBit,
    ObjectivePerturbationRelease,
    OutputPerturbationRelease,
    PenaltyBit,
    PoissonSampledDpEvent,
    PosteriorDraw,
    SelfComposedDpEvent,
    ZCDpEvent,
)


def barker(p):
    if "log_ratio_sensitivities" in p:
        levels = p["log_ratio_sensitivities"]
        return ComposedDpEvent(
            [SelfComposedDpEvent(BarkerBit(one["value"]), one["steps"]) for one in levels]
        )
    return SelfComposedDpEvent(BarkerBit(p["log_ratio_sensitivity"]), p["steps"])


def noisy(cls):
    return lambda p: SelfComposedDpEvent(cls(p["log_ratio_sensitivity"], p["noise_sd"]), p["steps"])


def minibatch(p):
    sd = p.get("noise_sd", 0.0)
    rule = "noisy_barker" if sd else "barker"
    batch = p["lam"] + p["N"] * p["c"] * p["M"]
    return SelfComposedDpEvent(MinibatchBit(p["N"], p["c"], p["M"], batch, rule, sd), p["steps"])


def bounded_draws(p):
    width = (2 if p["log_likelihood_range"] == "[-B,B]" else 1) * p["log_likelihood_bound"]
    return SelfComposedDpEvent(PosteriorDraw(p["temperature"] * width), p["draws"])


def log_concave_draws(p):
    draw = LogConcaveDraw(p["temperature"] * p["lipschitz"], p["strong_convexity"])
    return SelfComposedDpEvent(draw, p["draws"])


def last_iterate(p):
    steps = p["thinning"] if "thinning" in p else p["steps"]
    one = LangevinLastIterate(
        p["step_size"], steps, p["lipschitz"], p["strong_convexity"], p["smoothness"]
    )
    return SelfComposedDpEvent(one, p.get("released_states", 1))


def objective(p):
    return ObjectivePerturbationRelease(
        p["lipschitz"],
        p["smoothness"],
        p["regularisation"],
        p["noise_sd"],
        p.get("output_noise_sd", 0.0),
        p.get("gradient_tolerance", 0.0),
    )


def output(p):
    return OutputPerturbationRelease(
        p["lipschitz"], p["strong_convexity"], p["gradient_tolerance"], p["noise_sd"]
    )


def ledger(p):
    events = []
    for one in p["events"]:
        if "rho" in one and "steps" not in one:
            events.append(ZCDpEvent(one["rho"]))
        elif "barker_sensitivity" in one:
            events.append(SelfComposedDpEvent(BarkerBit(one["barker_sensitivity"]), one["steps"]))
        elif "gdp_mu" in one:
            events.append(GaussianDpEvent(1 / one["gdp_mu"]))
        else:
            step = PoissonSampledDpEvent(
                one["sampling_rate"], GaussianDpEvent(one["noise_multiplier"])
            )
            events.append(SelfComposedDpEvent(step, one["steps"]))
    return ComposedDpEvent(events)


# Mechanism -> number of its rows, and how a row becomes an event.
STATED = {
    "barker": (14, barker),
    "barker_gdp": (2, barker),
    "penalty": (11, noisy(PenaltyBit)),
    "noisy_barker": (5, noisy(NoisyBarkerBit)),
    "directional_barker": (
        6,
        lambda p: SelfComposedDpEvent(
            DirectionalBarkerBit(p["step_size"], p["row_norm"]), p["steps"]
        ),
    ),
    "tunamh_barker": (8, minibatch),
    "tunamh_noisy_ratio_release": (6, minibatch),
    "ops_bounded": (8, bounded_draws),
    "ops_lipschitz": (3, log_concave_draws),
    "ula_last_iterate": (6, last_iterate),
    "output_perturbation": (4, output),
    "objective_perturbation": (9, objective),
    "objective_perturbation_amp": (1, objective),
}
