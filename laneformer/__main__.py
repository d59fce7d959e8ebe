"""``python -m laneformer`` is the ``laneformer`` command."""

from laneformer.cli import main

raise SystemExit(main())
