"""Stable-Baselines3's evaluation takes an agent as it is and finds what `p3o eval` finds."""

import json

import gymnasium as gym
import pytest
from commands import TINY, call

from p3o import P3O

pytestmark = [
    pytest.mark.sb3,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),  # of that library and of torch
]


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_evaluate_policy_agrees_with_eval(env_id, tmp_path):
    pytest.importorskip("stable_baselines3", reason="needs stable-baselines3 (extra `sb3`)")
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv

    run, episodes, seed = tmp_path / "run", 10, 7
    assert call("train", env_id, "--steps", 320, "--out", run, *TINY).code == 0
    told = json.loads(call("eval", run, "--episodes", episodes, "--seed", seed, "--deterministic", "--json").out)
    env = DummyVecEnv([lambda: Monitor(gym.make(env_id))])
    env.seed(seed)  # of the first reset; later ones go on from the environment's own state, as in `p3o eval`
    returns, lengths = evaluate_policy(
        P3O.load(run), env, n_eval_episodes=episodes, deterministic=True, return_episode_rewards=True
    )
    # The monitor rounds an episode's return to six digits after the point.
    assert returns == pytest.approx(told["returns"], abs=1e-6)
    assert sum(lengths) / episodes == told["mean_length"]


def test_an_unvectorised_environment_is_taken_too(tmp_path):
    pytest.importorskip("stable_baselines3", reason="needs stable-baselines3 (extra `sb3`)")
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor

    agent = P3O("CartPole-v1", num_envs=2, num_steps=16, hidden_sizes="8")
    mean, deviation = evaluate_policy(agent, Monitor(gym.make("CartPole-v1")), n_eval_episodes=3)
    assert mean > 0
    assert deviation >= 0
