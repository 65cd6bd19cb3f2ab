"""`python -m semel` runs the command `semel`."""

import sys

from semel.cli import main

sys.exit(main())
