"""Whether published tables agree with themselves."""
