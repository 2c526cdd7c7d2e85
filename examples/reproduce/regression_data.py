"""Four logistic regressions on sensitive records, as numbers: shared by the reproductions.

``adult109``, ``adult14``, ``abalone`` and the two of ``diabetes130`` (``readmitted_any``,
``readmitted_30``) are read from the folder of the project's data. The last column is always an
intercept. Columns of ``adult109`` and ``diabetes130`` have bounds and code-books fixed in advance;
those of ``adult14`` and ``abalone`` come standardised on the whole data, which is not private and
is taken as public here.
"""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import expit
from scipy.stats import rankdata

# Code-book of the diabetes data (Strack et al. 2014); codes outside it set no column.
_RACES = ("Caucasian", "AfricanAmerican", "Hispanic", "Other", "Asian", "")
_GENDERS = ("Female", "Male", "Unknown/Invalid")
_AGES = tuple(f"[{low}-{low + 10})" for low in range(0, 100, 10))
_GLUCOSE = ("None", "Norm", ">200", ">300")
_A1C = ("None", "Norm", ">7", ">8")
_DOSES = ("Steady", "Up", "Down")
_ID_CODES = {"admission_type_id": 8, "discharge_disposition_id": 30, "admission_source_id": 26}
_DRUGS = (
    "metformin", "repaglinide", "nateglinide", "chlorpropamide", "glimepiride", "acetohexamide",
    "glipizide", "glyburide", "tolbutamide", "pioglitazone", "rosiglitazone", "acarbose",
    "miglitol", "troglitazone", "tolazamide", "insulin", "glyburide-metformin",
    "glipizide-metformin", "glimepiride-pioglitazone", "metformin-rosiglitazone",
    "metformin-pioglitazone",
)  # fmt: skip
# Specialties by how their names begin, the first that fits; the rest share a column.
_SPECIALTIES = (
    ("?",), ("Internal",), ("Family",), ("Emergency",), ("Cardio",), ("Surgery-General",),
    ("Surg",), ("Ortho",), ("Radio",), ("Nephro",), ("Pulmo",), ("Psych",), ("Obst", "Gyne"),
    ("Uro",), ("Gastro",), ("Onco", "Hema"), ("Pedia",), ("Neuro",), ("PhysicalMed",),
)  # fmt: skip
# First codes of the chapters of ICD-9; diabetes (250) has a column of its own.
_CHAPTERS = (1, 140, 240, 280, 290, 320, 390, 460, 520, 580, 630, 680, 710, 740, 760, 780, 800)
# Public upper ends of counts, and whether their logarithm is taken.
_COUNTS = {
    "time_in_hospital": (14, False),
    "num_lab_procedures": (132, False),
    "num_procedures": (6, False),
    "num_medications": (81, False),
    "number_outpatient": (42, True),
    "number_emergency": (76, True),
    "number_inpatient": (21, True),
    "number_diagnoses": (16, False),
}


class Task(NamedTuple):
    """Training rows and test rows; the last column is the intercept.

    - **row_norm**: public bound on most rows, the intercept apart.
    """

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    row_norm: float

    def thinned(self, every: int) -> "Task":
        """One row in ``every``, for a quick look."""
        return Task(*(part[::every] for part in self[:4]), self.row_norm)


def adult109(folder: Path) -> Task:
    """Income of 32,561 people: 102 one-hots and six numbers between fixed bounds."""
    with np.load(folder / "adult109.npz") as file:
        parts = [file[f"{kind}_{part}"] for part in ("train", "test") for kind in "Xy"]
    # Eight one-hots and six numbers in [0, 1].
    return _task(*parts, row_norm=math.sqrt(14.0))


def adult14(folder: Path) -> Task:
    """The same people, 14 standardised columns, the first 80 % to learn from."""
    return _stored(folder / "adult14_dpvi_style.npz", row_norm=6.0)


def abalone(folder: Path) -> Task:
    """3,341 animals, eight standardised columns; older than nine rings or not."""
    return _stored(folder / "abalone_dpvi.npz", row_norm=4.0)


def diabetes130(folder: Path, *, soon: bool) -> Task:
    """First stays of 69,973 patients; did they come back, at all or ``soon`` (within 30 days).

    Two hundred and forty-five public columns. The file is in order of time, and readmissions became
    rarer: 80 % of the rows, picked by a fixed public shuffle, are learnt from.
    """
    table = pd.read_csv(folder / "diabetes130.csv.gz", keep_default_na=False)
    x = np.concatenate([*_diabetes_columns(table), np.ones((len(table), 1))], axis=1)
    y = table["readmitted"] == "<30" if soon else table["readmitted"] != "NO"
    order = np.random.default_rng(0).permutation(len(x))
    x, y, split = x[order], y.to_numpy()[order], int(0.8 * len(x))
    return _task(x[:split], y[:split], x[split:], y[split:], row_norm=4.5)


TASKS: dict[str, Callable[[Path], Task]] = {
    "adult109": adult109,
    "adult14": adult14,
    "abalone": abalone,
    "readmitted_any": partial(diabetes130, soon=False),
    "readmitted_30": partial(diabetes130, soon=True),
}


def scores(probability: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Accuracy, area under the curve and log-loss of predicted probabilities."""
    positive = y == 1
    ranks = rankdata(probability)[positive].sum() - positive.sum() * (positive.sum() + 1) / 2
    likelihood = np.where(positive, probability, 1 - probability)
    return {
        "accuracy": float(np.mean((probability > 0.5) == positive)),
        "auc": float(ranks / (positive.sum() * (~positive).sum())),
        "log_loss": float(-np.log(np.maximum(likelihood, 1e-12)).mean()),
    }


def predictive(draws: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Mean probability over posterior draws of the coefficients, of shape (draws, columns)."""
    return expit(x @ draws.T).mean(axis=1)


def _task(
    x: np.ndarray, y: np.ndarray, x_test: np.ndarray, y_test: np.ndarray, *, row_norm: float
) -> Task:
    rows, outcomes = np.float32, np.int32
    return Task(
        np.asarray(x, rows), np.asarray(y, outcomes),
        np.asarray(x_test, rows), np.asarray(y_test, outcomes), row_norm,
    )  # fmt: skip


def _stored(path: Path, *, row_norm: float) -> Task:
    with np.load(path) as file:
        x, y, split = file["X"], file["y"], int(file["n_train"])
    x = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    return _task(x[:split], y[:split], x[split:], y[split:], row_norm=row_norm)


def _diabetes_columns(table: pd.DataFrame) -> list[np.ndarray]:
    return [
        _one_hot(table["race"], _RACES),
        _one_hot(table["gender"], _GENDERS),
        _one_hot(table["age"], _AGES),
        *(_one_hot(table[name], range(1, top + 1)) for name, top in _ID_CODES.items()),
        _one_hot(table["medical_specialty"].map(_specialty), range(len(_SPECIALTIES) + 1)),
        *(_one_hot(table[f"diag_{k}"].map(_chapter), range(20)) for k in (1, 2, 3)),
        _one_hot(table["max_glu_serum"], _GLUCOSE),
        _one_hot(table["A1Cresult"], _A1C),
        *(_one_hot(table[name], _DOSES) for name in _DRUGS),
        _one_hot(table["change"], ("Ch",)),
        _one_hot(table["diabetesMed"], ("Yes",)),
        *(_count(table[name], *bound) for name, bound in _COUNTS.items()),
    ]


def _one_hot(column: pd.Series, values: tuple[str, ...] | range) -> np.ndarray:
    return (column.to_numpy()[:, None] == np.array(values)[None]).astype(np.float32)


def _count(column: pd.Series, top: int, logarithm: bool) -> np.ndarray:
    clipped = np.clip(column.to_numpy(np.float32), 0, top)
    scaled = np.log1p(clipped) / math.log1p(top) if logarithm else clipped / top
    return scaled[:, None]


def _specialty(name: str) -> int:
    known = name or "?"
    fitting = (k for k, starts in enumerate(_SPECIALTIES) if known.startswith(starts))
    return next(fitting, len(_SPECIALTIES))


def _chapter(code: str) -> int:
    """0-16: chapters; 17: diabetes; 18: supplementary codes (V, E); 19: missing."""
    if not code or code == "?":
        return 19
    if code[0] in "VE":
        return 18
    number = int(code.split(".")[0])
    return 17 if number == 250 else int(np.searchsorted(_CHAPTERS, number, side="right")) - 1
