"""Run by Python at the start of every process below ``perfscope profile``, because this folder is on PYTHONPATH.

It must cost nothing in a process that never trains: it installs one import hook and returns. The capture itself is
loaded when torch is loaded. The ``sitecustomize`` that this one shadows runs as if this one did not exist.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_is_off = False


def _locations() -> "tuple[str, str]":
    """The files of perfscope and perfscope.hooks."""
    locations_file = os.path.join(_HERE, "locations")
    if os.path.exists(locations_file):
        with open(locations_file, encoding="utf-8") as file:
            package, hooks = file.read().split("\n")[:2]
        return package, hooks
    hooks = os.path.dirname(_HERE)
    parent = os.path.dirname(hooks)
    package = parent if os.path.exists(os.path.join(parent, "wire")) else os.path.join(parent, "perfscope")
    return os.path.join(package, "__init__.py"), os.path.join(hooks, "__init__.py")


def _load(name: str, file: str, submodule_folders: "list[str] | None") -> "Any":
    """Import a module from its file without sys.path, so that nothing of ours becomes importable for the script."""
    external: Any = sys.modules["_frozen_importlib_external"]
    bootstrap: Any = sys.modules["_frozen_importlib"]
    spec = external.spec_from_file_location(name, file, submodule_search_locations=submodule_folders)
    module = bootstrap.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _write_message(text: str) -> None:
    line = f"perfscope: nothing is captured in process {os.getpid()}: {text}\n"
    try:
        # Not into the stream's buffer: Python would fail at its end to write it where standard error is full.
        os.write(sys.stderr.fileno(), line.encode(errors="backslashreplace"))
    except (AttributeError, OSError, ValueError):
        return  # there is no standard error


def _is_foreign(module: "ModuleType | None") -> bool:
    """Whether ``import perfscope`` is meant to give the script another project's module."""
    if module is not None:
        return getattr(module, "DISTRIBUTION", None) != "perfscope-toolkit"
    external: Any = sys.modules["_frozen_importlib_external"]
    spec = external.PathFinder.find_spec("perfscope")
    if spec is None or spec.origin is None:  # there is none, or a folder without code
        return False
    return not os.path.exists(os.path.join(os.path.dirname(spec.origin), "frameworks.py"))


def _on_import(hooks_files: "tuple[str, ...]", name: str, module: "ModuleType") -> None:
    global _is_off  # noqa: PLW0603 - of this process
    if _is_off:
        return None
    try:
        ours = sys.modules.get("perfscope")
        if "perfscope.hooks" not in sys.modules:
            if _is_foreign(ours):
                _is_off = True
                return _write_message("the script has another project's module named perfscope")
            package, hooks = _locations()
            ours = ours or _load("perfscope", package, [os.path.dirname(package)])
            ours.hooks = _load("perfscope.hooks", hooks, [os.path.dirname(hooks)])  # type: ignore[union-attr]
        from perfscope.hooks.start import patch  # loaded with torch, not in every process
    except Exception as error:  # noqa: BLE001 - the hooks' outer edge: training goes on without the capture
        _is_off = True
        return _write_message(repr(error))
    return patch(hooks_files, name, module, _HERE)


def _install() -> None:
    is_configured = os.path.exists(os.path.join(_HERE, "config.json")) or "PYTHON_PERFSCOPE" in os.environ
    if not is_configured or "_perfscope_imports" in sys.modules:
        return
    package, hooks = (os.path.dirname(file) for file in _locations())
    frameworks_file = os.path.join(package, "frameworks.py")
    imports_file = os.path.join(hooks, "reach", "imports.py")
    if not os.path.exists(imports_file):
        return  # a node without our files: the summary names the ranks that never reported
    imports = _load("_perfscope_imports", imports_file, None)
    watched = _load("_perfscope_frameworks", frameworks_file, None).WATCHED
    finder = imports.PostImportFinder(watched, lambda name, module: _on_import(watched[name], name, module))
    sys.meta_path.insert(0, finder)


def _run_shadowed() -> None:
    """Import the sitecustomize that would run without this folder; where there is none, ours stays imported."""
    packaged = os.path.join(os.path.dirname(_locations()[1]), "boot")  # it is on PYTHONPATH after a run's own folder
    our_folders = {os.path.realpath(_HERE), os.path.realpath(packaged)}
    # Ours are absolute; the place of a relative entry is not known where the working folder was deleted.
    sys.path[:] = [entry for entry in sys.path if entry[:1] != "/" or os.path.realpath(entry) not in our_folders]
    for folder in (_HERE, packaged):
        sys.path_importer_cache.pop(folder, None)
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found] # noqa: F401 - imported for its effect
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        if ours is not None:
            sys.modules["sitecustomize"] = ours


try:
    _install()
except Exception as _error:  # noqa: BLE001 - the hooks' outer edge: the interpreter starts without the capture
    _write_message(repr(_error))
_run_shadowed()
