"""What works on this machine: each check looks at one part, or tries it in a process of its own, and names a fix."""
