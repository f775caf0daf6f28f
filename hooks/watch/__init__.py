"""What is kept of a training that stalls or fails: stacks, collectives, the order in which ranks ended."""

import sys

#: Whether the script has loaded faulthandler, and may use its timer; the modules of this package load it themselves.
SCRIPT_HAS_FAULTHANDLER = "faulthandler" in sys.modules
