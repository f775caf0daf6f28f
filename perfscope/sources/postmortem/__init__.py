"""Readers of what a stall or a failure leaves behind: dumps of torch's Flight Recorder, stacks, incidents."""
