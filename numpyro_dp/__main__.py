"""``python -m numpyro_dp``: what the package offers from the shell."""

import sys

from numpyro_dp.cli import main

if __name__ == "__main__":
    sys.exit(main())
