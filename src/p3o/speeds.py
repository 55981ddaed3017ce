"""How long an environment step takes: rough, from one core of an AMD EPYC (Zen 4), to plan by and not to quote.

Microseconds, simulator and learning together. MuJoCo's were measured with
`p3o bench ENV-v4 --preset paper --algos p3o ppo a2c --seconds 2` (A2CG is taken to be as fast as A2C). Of Atari
A2C's and PPO's are from short runs on two cores, the others from the time of one gradient on one; all leave a GPU out.
The rest are guesses.
"""

MUJOCO = {
    "HalfCheetah": {"p3o": 169, "ppo": 72, "a2c": 44},
    "Walker2d": {"p3o": 259, "ppo": 149, "a2c": 124},
    "Hopper": {"p3o": 206, "ppo": 124, "a2c": 89},
    "Swimmer": {"p3o": 184, "ppo": 88, "a2c": 56},
    "InvertedDoublePendulum": {"p3o": 195, "ppo": 95, "a2c": 70},
    "InvertedPendulum": {"p3o": 136, "ppo": 51, "a2c": 29},
    "Ant": {"p3o": 366, "ppo": 264, "a2c": 217},
    "Humanoid": {"p3o": 648, "ppo": 301, "a2c": 242},
}
IMAGES = {"p3o": 26_700, "a2c": 3_000, "ppo": 6_600, "acer": 13_700}
OTHERS = {"p3o": 180, "a2c": 60, "ppo": 90, "acer": 100}
OTHER_ALGORITHM = 100


def seconds_per_step(env_id: str, algo: str, has_images: bool) -> float:
    """One core, one environment step; `env_id` may be a task's name alone."""
    task = env_id.rpartition(":")[2].removeprefix("p3o/").split("-")[0]
    table = IMAGES if has_images else MUJOCO.get(task, OTHERS)
    return table.get("a2c" if algo == "a2cg" else algo, OTHER_ALGORITHM) * 1e-6
