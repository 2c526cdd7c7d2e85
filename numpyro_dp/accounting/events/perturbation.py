"""Events of output and objective perturbation; constants as in ``sampling``."""

from dp_accounting.dp_event import DpEvent

from numpyro_dp.accounting.events.fields import event, nonnegative, number, positive


@event
class OutputPerturbationRelease(DpEvent):
    """An approximate minimiser plus N(0, s²I).

    :param lipschitz: L, of one record's convex loss.
    :param strong_convexity: λ of the objective.
    :param gradient_tolerance: γ, bound on the objective's gradient norm at the approximate
        minimiser, guaranteed for every data set.
    :param noise_sd: s.

    **Privacy.** A Gaussian of shift (L + 2γ)/(λs) under zero-out and add/remove, (2L + 2γ)/(λs)
    under replace-one.

    **References.** Chaudhuri, Monteleoni and Sarwate, *Differentially Private
    Empirical Risk Minimization* (2011).

    **Example**: see :func:`~numpyro_dp.accounting.privacy_curve`, which takes any event.
    """

    lipschitz: float = nonnegative()
    strong_convexity: float = positive()
    gradient_tolerance: float = nonnegative()
    noise_sd: float = positive()

    def phrase(self) -> str:
        return f"output perturbation, noise sd {number(self.noise_sd)}"


@event
class ObjectivePerturbationRelease(DpEvent):
    """The minimiser of a GLM objective with a random linear term b ~ N(0, σ²I).

    :param lipschitz: L, bound on one record's gradient ``|f'|‖x‖``.
    :param smoothness: β, bound on one record's curvature f''‖x‖².
    :param regularisation: λ of ½λ‖θ‖².
    :param noise_sd: σ, standard deviation of b.
    :param output_noise_sd: s of N(0, s²I) added to the approximate minimiser.
    :param gradient_tolerance: γ, bound on the perturbed objective's gradient norm at the
        approximate minimiser, guaranteed for every data set; needs ``output_noise_sd`` when
        positive.

    **Privacy.** See the accounting of this event; the approximate minimum adds a Gaussian of shift
    2γ/(λs). A Gaussian of shift L/σ alone would be too little.

    **References.** Kifer, Smith and Thakurta, *Private Convex Empirical Risk
    Minimization and High-dimensional Regression* (2012); Redberg, Koskela and Wang, *Improving the
    Privacy and Practicality of Objective Perturbation* (2023).

    **Example**: see :func:`~numpyro_dp.accounting.privacy_curve`, which takes any event.
    """

    lipschitz: float = nonnegative()
    smoothness: float = nonnegative()
    regularisation: float = positive()
    noise_sd: float = positive()
    output_noise_sd: float = nonnegative(default=0.0)
    gradient_tolerance: float = nonnegative(default=0.0)

    def __attrs_post_init__(self) -> None:
        if self.gradient_tolerance > 0 and self.output_noise_sd == 0:
            raise ValueError(
                "an approximate minimiser (gradient_tolerance > 0) is not private by itself: set "
                "output_noise_sd"
            )

    def phrase(self) -> str:
        output = f", output noise sd {number(self.output_noise_sd)}" if self.output_noise_sd else ""
        return f"objective perturbation, noise sd {number(self.noise_sd)}{output}"


@event
class PureObjectivePerturbationRelease(DpEvent):
    """The exact minimiser of a GLM objective with a random linear term, density ∝ e^{−‖b‖/s}.

    :param lipschitz: L, bound on one record's gradient ``|f'|‖x‖``.
    :param smoothness: β, bound on one record's curvature f''‖x‖².
    :param regularisation: λ of ½λ‖θ‖².
    :param noise_scale: s, where ‖b‖ ~ Gamma(d, s) and the direction is uniform.

    **Privacy.** Pure ε = L/s + log(1 + β/λ) under zero-out and add/remove, 2L/s + log(1 + β/λ)
    under replace-one.

    **References.** Chaudhuri, Monteleoni and Sarwate, *Differentially Private Empirical Risk
    Minimization* (2011), Theorem 9.

    **Example**: see :func:`~numpyro_dp.accounting.privacy_curve`, which takes any event.
    """

    lipschitz: float = nonnegative()
    smoothness: float = nonnegative()
    regularisation: float = positive()
    noise_scale: float = positive()

    def phrase(self) -> str:
        return f"objective perturbation with pure ε, noise scale {number(self.noise_scale)}"
