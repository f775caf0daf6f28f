"""In the form of Megatron-LM's package of the same name, which is not installed with Megatron-core."""
