"""What the hooks do in a quiet step, in C: built where there is a compiler, and never needed."""
