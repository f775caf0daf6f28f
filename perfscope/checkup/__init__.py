"""What of perfscope works on this machine: each check looks, or tries in a process of its own, and says how to mend."""
