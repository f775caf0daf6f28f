"""Looks at a thread while others begin and end, and garbage is collected at each occasion."""

import gc
import sys
import threading
import time

from perfscope.hooks.places import read_stack


def begin_and_end() -> None:
    while time.monotonic() < ends_s:
        threads = [threading.Thread(target=list) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def on_collection(_phase: str, _info: dict[str, int]) -> None:
    for _ in range(20):
        pass


ends_s = time.monotonic() + 3
sys.setswitchinterval(1e-6)
gc.set_threshold(1)
gc.callbacks.append(on_collection)
busy = [threading.Thread(target=begin_and_end) for _ in range(2)]
for thread in busy:
    thread.start()
looks = 0
while time.monotonic() < ends_s:
    assert read_stack(threading.main_thread().ident or 0, 16)
    looks += 1
for thread in busy:
    thread.join()
assert gc.isenabled()
gc.disable()
read_stack(threading.main_thread().ident or 0, 16)
assert not gc.isenabled()
print(looks)
