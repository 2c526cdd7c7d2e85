"""Sphinx configuration: ``sphinx-build -W -b html docs docs/_build/html``."""

import os
import sys
from pathlib import Path

from numpyro_dp._quick_compile import known_flags

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))
# Executed pages share the example's data loader; they run in processes of their own.
_paths = [str(HERE.parent / "examples"), os.environ.get("PYTHONPATH", "")]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, _paths))
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# The pages' programs are small and many, and some run for half a minute: compile them lightly.
if "XLA_FLAGS" not in os.environ:
    os.environ["XLA_FLAGS"] = known_flags("light_options")

project = "numpyro_dp"
author = "The numpyro_dp developers"
copyright = "The numpyro_dp developers, Apache-2.0"

extensions = [
    "claims",
    "local_sockets",
    "mutations",
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
# A page whose code no longer runs must break the build; so no cache, which would hide it.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
# Per cell, and pages share the machine's cores: a hung cell ends, a slow one does not.
nb_execution_timeout = 1200
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_typehints = "none"

html_theme = "furo"
html_title = "numpyro_dp"
html_static_path = ["_static"]
html_css_files = ["tables.css"]
copybutton_exclude = ".linenos, .gp, .go"
