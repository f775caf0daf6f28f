"""Checks of what works on this machine: each looks at one part, or tries it in a separate process, and names a fix."""
