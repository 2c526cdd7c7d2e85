"""Broken estimators: solvers that stop early, noise that is not there, terms left out."""

from numpyro_dp.accounting import events
from numpyro_dp.estimators import noise, objective, output, perturbation, solver
from numpyro_dp.estimators.problem import Problem
from numpyro_dp.estimators.release import LatticeOutput
from tests.mutations.patches import Instead, everywhere
from tests.mutations.registry import mutation

EXACT = "estimators/test_exact.py"


@mutation(
    "The solver takes half of the steps that its guarantee needs.",
    "estimators/test_solver.py::test_the_gradient_norm_is_guaranteed_on_every_data_set",
    r"<= tolerance",
    given={"name": "logistic", "kind": "separable"},
    slow=True,
)
def solver_stops_early(patch):
    honest = solver.num_iterations
    everywhere(patch, honest, lambda problem, tolerance: honest(problem, tolerance) // 2)


@mutation(
    "The minimiser is released with half the noise that is charged.",
    "estimators/test_noise.py::test_outputs_are_on_the_lattice_with_floored_gaussian_noise",
    "LEAST_P",
    slow=True,
)
def quiet_output(patch):
    honest = LatticeOutput.scale.fget
    patch.setattr(LatticeOutput, "scale", property(lambda self: honest(self) / 2))


@mutation(
    "The linear term of objective perturbation has a third of the noise that is charged.",
    f"{EXACT}::test_what_is_released_has_the_density_of_the_theorem",
    r"pvalue|np\.std",
    given={"noise": "gaussian"},
    slow=True,
)
def quiet_linear_term(patch):
    honest = noise.Gaussian
    patch.setattr(objective, "Gaussian", lambda size: honest(size / 3))


@mutation(
    "The curvature of one record is left out of objective perturbation's event.",
    f"{EXACT}::test_no_neighbour_tells_more_than_is_charged",
    r"worst <= charged",
    given={"name": "logistic", "noise": "gamma", "multiplier": 4.0, "ridge": 0.0},
    slow=True,
)
def curvature_of_a_record_left_out(patch):
    patch.setattr(Problem, "record_smoothness", property(lambda self: 0.0))


@mutation(
    "What rounding to the lattice moves a minimiser by is not charged.",
    "estimators/test_solver.py::test_rounding_of_the_output_is_charged_with_the_solvers_error",
    "approx",
    slow=True,
)
def rounding_of_the_output_uncharged(patch):
    def exact(lipschitz, strong_convexity, gradient_tolerance, noise_sd):
        rounding = LatticeOutput(noise_sd, 3).rounding
        short = gradient_tolerance - strong_convexity * rounding
        return events.OutputPerturbationRelease(lipschitz, strong_convexity, short, noise_sd)

    patch.setattr(output, "events", Instead(events, OutputPerturbationRelease=exact))


@mutation(
    "Rows are projected to twice the bound that one record's part is charged for.",
    "estimators/test_solver.py::test_the_gradient_norm_is_guaranteed_on_every_data_set",
    r"max\(\) <= 1\.0",
    given={"name": "logistic", "kind": "huge and broken"},
    slow=True,
)
def longer_rows(patch):
    honest = perturbation._rows

    def doubled(glm, row_norm, *given):
        rows = honest(glm, row_norm, *given)
        return rows._replace(x=2 * rows.x)

    everywhere(patch, honest, doubled)
