"""Either of ArviZ's two interfaces, as tests look at what they made."""

from typing import Any

import xarray


def group_names(data: Any) -> list[str]:
    """Names of the groups: of a tree with ArviZ 1, of an ``InferenceData`` with ArviZ 0.23."""
    return list(data.children if isinstance(data, xarray.DataTree) else data.groups())
