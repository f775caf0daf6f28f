"""The hooks in C, which are built where there is a compiler: everything else is in pyproject.toml."""

from __future__ import annotations

import sysconfig

from setuptools import Extension, setup

#: Python's stable interface, so that one build serves Python 3.11 and all later ones; free-threaded ones have none.
IS_STABLE = not sysconfig.get_config_var("Py_GIL_DISABLED")

setup(
    ext_modules=[
        Extension(
            "perfscope.hooks.native.quiet",
            [f"hooks/native/{name}.c" for name in ("asking", "hooks", "module", "rows")],
            depends=["hooks/native/quiet.h"],
            extra_compile_args=["-O2", "-Wall", "-Wextra", "-fvisibility=hidden"],
            py_limited_api=IS_STABLE,
            optional=True,
        )
    ]
    if IS_STABLE
    else [],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if IS_STABLE else {},
)
