"""Why a training stalled or failed: which rank, which collective, which line."""
