"""What a run says of itself at its start."""

from pathlib import Path

from p3o import speeds
from p3o.display import Header
from p3o.jobs import Setup, env_name
from p3o.networks import num_parameters
from p3o.placement import replay_line, what_to_expect


def header(setup: Setup, steps: int, folder: Path | None) -> Header:
    job, config, trainer = setup.job, setup.config, setup.trainer
    lines = [
        f"{config.num_envs} environment{'s' * (config.num_envs > 1)} × {config.num_steps} steps an iteration, "
        f"{num_parameters(trainer.state.params):,} parameters on {trainer.device.platform}, "
        f"preset {job.preset}{', variant ' + job.variant if job.variant else ''}"
    ]
    if trainer.algorithm.replay_bytes:
        lines.append(replay_line(trainer.algorithm.replay_bytes, trainer.placement))
    image_speed = None
    if setup.specs.observation.kind == "image":
        image_speed = 1 / speeds.seconds_per_step(env_name(job.env), job.algo, has_images=True)
    lines += what_to_expect(trainer.placement, image_speed, config.deterministic)
    if folder is not None:
        lines.append(f"run folder: {folder}")
    return Header(f"{job.algo.upper()} on {env_name(job.env)}, seed {job.seed}", lines, steps)
