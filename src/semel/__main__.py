"""`python -m semel` is `semel`."""

import sys

from semel.cli import main

sys.exit(main())
