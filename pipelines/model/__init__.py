"""GPT-2: the model, its training, sampling and export. torch and safetensors live here and nowhere else."""

from __future__ import annotations

import os

# Before torch starts its threads: they are to sleep, not to spin, while they wait for each other. On a machine that has
# other work too, spinning threads take the processor from the very thread that they wait for.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
