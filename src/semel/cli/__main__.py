"""`python -m semel.cli` is `semel`."""

import sys

from semel.cli import main

sys.exit(main())
