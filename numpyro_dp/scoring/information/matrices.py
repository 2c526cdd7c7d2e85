"""Names and tools for matrices of rounds."""

from __future__ import annotations

from typing import Any

import numpy as np

Matrix = np.ndarray
Vector = np.ndarray


def symmetric(matrix: Matrix) -> Matrix:
    """Without what rounding made unlike."""
    return (matrix + matrix.T) / 2


def column(numbers: Any) -> np.ndarray:
    """A number for each round's matrix, shape (rounds, 1, 1)."""
    return np.asarray(numbers)[:, None, None]


def traces(matrices: np.ndarray) -> Vector:
    """Of each matrix."""
    return np.trace(matrices, axis1=1, axis2=2)
