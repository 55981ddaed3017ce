"""JAX set up once, before its first computation: threads, compile cache, GPU memory."""

import contextlib
import ctypes
import os
import sys
import warnings
from pathlib import Path

SINGLE_THREAD_FLAGS = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
CGROUP = Path("/sys/fs/cgroup")  # where a container says what it may use
GPU_SHARE = "P3O_GPU_SHARE"  # variable by which a sweep tells a process how many share its GPU
DETERMINISTIC_FLAG = "--xla_gpu_deterministic_ops=true"
LATE = (
    "JAX was in use before the first agent, with threads as it sets them: agents may be slower for it, and a run that "
    "another process resumes is perhaps not bit for bit the same; make the first agent before anything is computed"
)


def cache_folder() -> Path | None:
    """The user's cache folder for compiled functions, None where there can be none."""
    try:
        if os.environ.get("XDG_CACHE_HOME"):
            base = Path(os.environ["XDG_CACHE_HOME"])
        elif sys.platform == "darwin":
            base = Path.home() / "Library" / "Caches"
        else:
            base = Path.home() / ".cache"
        folder = base / "p3o" / "jax"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # nowhere to write, or no home at all
        return None
    return folder


def keep_freed_memory() -> None:
    """Tell glibc to keep large freed blocks: XLA's temporaries are megabytes, taken anew at each call.

    Mapping and unmapping them costs an iteration of P3O on vectors some 4 %, one of A2C on images a quarter. There XLA
    has several threads, and only glibc's first arena, which all of them then share, keeps blocks of any size. Elsewhere
    than on glibc nothing happens.
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        trim_threshold, top_pad, mmap_threshold, arena_max = -1, -2, -3, -8  # M_* of malloc.h
        mallopt(trim_threshold, (1 << 31) - 1)  # more than an update's temporaries: 1.3 GB for P3O on games
        mallopt(top_pad, 16 << 20)
        mallopt(mmap_threshold, (1 << 31) - 1)
        mallopt(arena_max, 1)


def configure(
    observation_kind: str, deterministic: bool = False, cores: int | None = None, was_in_use: bool = False
) -> int:
    """Set JAX's defaults for a run; what the user has set already stays. Returns the cores that XLA compiles for.

    Small networks run faster on one thread, and one thread a process is what sweeps want. XLA cuts an update by the
    number of cores, which moves its last bits: a resumed run is given the number that it had. `was_in_use` is what
    `is_in_use` said when the job began: all this comes too late then, which is told.
    """
    cores = cores or (1 if observation_kind == "vector" else len(available_cores()))
    if "PJRT_NPROC" not in os.environ and is_in_use():
        asked, cores = cores, len(available_cores())  # XLA's own choice
        if was_in_use and (observation_kind == "vector" or asked != cores):
            warnings.warn(LATE, stacklevel=2)
    cores = int(os.environ.setdefault("PJRT_NPROC", str(cores)))
    flags = os.environ.get("XLA_FLAGS", "")
    wanted = []
    if observation_kind == "vector" and "xla_cpu_multi_thread_eigen" not in flags:
        wanted.append(SINGLE_THREAD_FLAGS)
    if deterministic and "xla_gpu_deterministic_ops" not in flags:
        wanted.append(DETERMINISTIC_FLAG)
    os.environ["XLA_FLAGS"] = " ".join([flags, *wanted]).strip()
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    keep_freed_memory()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import jax

    if jax.config.values.get("jax_compilation_cache_dir") is None and (folder := cache_folder()) is not None:
        # A cache that cannot be read or written costs a compilation, no more: it is not worth a warning.
        warnings.filterwarnings("ignore", message=".*persistent compilation cache")
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    return cores


def is_in_use() -> bool:
    """Whether something was computed in this process already, so that XLA is set up for good."""
    bridge = sys.modules.get("jax._src.xla_bridge")  # nothing public says it
    return getattr(bridge, "backends_are_initialized", lambda: False)()


def available_cores() -> list[int]:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def free_memory() -> int | None:
    """Bytes that a new buffer may take on the host, or None where the system does not say."""
    try:
        with open("/proc/meminfo") as file:
            lines = dict(line.split(":", 1) for line in file)
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
    for limit, used, cached in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            left = int((CGROUP / limit).read_text()) - int((CGROUP / used).read_text())
        except (OSError, ValueError):
            continue
        free = min(free, left + _cached(CGROUP / limit, cached))
    return max(free, 0)


def _cached(beside: Path, name: str) -> int:
    """Bytes of files that a container's memory holds and gives up when they are needed."""
    try:
        lines = (line.split() for line in beside.with_name("memory.stat").read_text().splitlines())
        return int(dict(lines)[name])
    except (OSError, ValueError, KeyError):
        return 0
