"""``python -m pyspark_mq``: the command line."""

import sys

from pyspark_mq.cli.main import main

sys.exit(main())
