"""How the documentation is built: `make docs`.  Nothing is fetched from a network."""

import sys
from pathlib import Path

from mpi_rollout import __version__

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "mpi_rollout"
release = version = __version__
project_copyright = "the authors of mpi_rollout"

extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc", "sphinx_copybutton", "program_options", "linked_pages"]
exclude_patterns = ["_build", "_ext"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
smartquotes = False  # It makes one dash of the two before an option.
default_role = "code"  # Single backticks in docstrings are names in code.

autodoc_mock_imports = ["stable_baselines3", "dm_env"]  # Only for their base classes.
autodoc_typehints = "none"  # numpydoc's sections say what the signature cannot.
autodoc_member_order = "bysource"
numpydoc_show_class_members = False

copybutton_exclude = ".linenos, .gp"

highlight_language = "none"  # A block without a language is what a program prints.

html_theme = "furo"
html_title = f"mpi_rollout {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_domain_indices = False
