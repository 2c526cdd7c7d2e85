"""Every refusal names the cause and the remedy, and no message holds a value of the data."""

import re

import numpy as np
import pytest

from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.model.private_model import PrivateModel

from .examples import REFUSED_EXAMPLES
from .refusals import REFUSED, Refused
from .zoo import design, real

ALL = REFUSED + REFUSED_EXAMPLES
MARKS = [pytest.param(c, id=c.name, marks=[] if c.quick else pytest.mark.slow) for c in ALL]


def data_text() -> set[str]:
    """Every value of the zoo's data as messages could print it, at several precisions."""
    values = np.concatenate([design().ravel(), real()])
    return {np.format_float_positional(abs(v), precision=p) for v in values for p in (3, 4, 6)}


@pytest.mark.parametrize("case", MARKS)
def test_refused_with_cause_and_remedy(case: Refused):
    model, args, kwargs = case.build()
    with pytest.raises(UnsupportedModelError) as caught:
        PrivateModel(model, args, kwargs, data_plate=case.data_plate)
    message = str(caught.value)
    for pattern in case.patterns:
        assert re.search(pattern, message), message
    assert not [text for text in data_text() if text in message]
