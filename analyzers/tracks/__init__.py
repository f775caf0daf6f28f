"""What a timeline of all ranks shows: steps, states of devices, passes and collectives, on one clock."""
