"""Starts processes as srun does: each learns its place from Slurm's variables."""

import os
import subprocess
import sys

count, port, *command = sys.argv[1:]
ranks = [
    subprocess.Popen(
        [sys.executable, *command],
        env={**os.environ, "SLURM_PROCID": str(rank), "SLURM_NTASKS": count, "SLURM_LOCALID": "0", "MASTER_PORT": port},
    )
    for rank in range(int(count))
]
sys.exit(max(rank.wait() for rank in ranks))
