"""PPO in one file of torch, as people write it by hand: a synchronous vector environment, one module, one loop.

    python benchmarks/torch_ppo.py CartPole-v1 --steps 100000

It stands for the single-file implementations in the comparison of speeds (`benchmarks/peers.py`).
"""

import argparse
import time
from collections.abc import Callable

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import (
    ClipAction,
    NormalizeObservation,
    NormalizeReward,
    RecordEpisodeStatistics,
    TransformObservation,
    TransformReward,
)
from torch import nn
from torch.distributions import Categorical, Independent, Normal

GAMMA, GAE_LAMBDA, CLIP, ENTROPY_COEF, VALUE_COEF, MAX_NORM, RATE = 0.99, 0.95, 0.2, 0.0, 0.5, 0.5, 3e-4


def make_env(env_id: str) -> gym.Env:
    """One environment with running normalisation of observations and rewards."""
    env: gym.Env = RecordEpisodeStatistics(gym.make(env_id))
    if isinstance(env.action_space, gym.spaces.Box):
        env = ClipAction(env)
    env = NormalizeObservation(env)
    env = TransformObservation(env, lambda x: np.clip(x, -10, 10), env.observation_space)
    return TransformReward(NormalizeReward(env, gamma=GAMMA), lambda r: float(np.clip(r, -10, 10)))


def layer(inputs: int, outputs: int, gain: float) -> nn.Linear:
    linear = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(linear.weight, gain)
    nn.init.zeros_(linear.bias)
    return linear


class Agent(nn.Module):
    """Policy and value, each with two tanh layers of 64."""

    def __init__(self, observation_size: int, action_space: gym.Space):
        super().__init__()
        self.is_discrete = isinstance(action_space, gym.spaces.Discrete)
        outputs = int(action_space.n) if self.is_discrete else int(np.prod(action_space.shape))  # type: ignore[attr-defined]
        self.policy = self._tower(observation_size, outputs, 0.01)
        self.value = self._tower(observation_size, 1, 1.0)
        self.log_std = nn.Parameter(torch.zeros(outputs))

    @staticmethod
    def _tower(inputs: int, outputs: int, gain: float) -> nn.Sequential:
        root = 2**0.5
        return nn.Sequential(
            layer(inputs, 64, root), nn.Tanh(), layer(64, 64, root), nn.Tanh(), layer(64, outputs, gain)
        )

    def forward(self, observation: torch.Tensor) -> tuple[torch.distributions.Distribution, torch.Tensor]:
        out = self.policy(observation)
        policy = Categorical(logits=out) if self.is_discrete else Independent(Normal(out, self.log_std.exp()), 1)
        return policy, self.value(observation).squeeze(-1)


class Loop:
    """Rollout and update of PPO; `iterate` does one of each."""

    def __init__(self, env_id: str, num_envs: int, num_steps: int, num_epochs: int, num_minibatches: int):
        torch.manual_seed(0)
        self.num_steps, self.num_epochs = num_steps, num_epochs
        self.minibatch = num_envs * num_steps // num_minibatches
        self.envs = SyncVectorEnv([lambda: make_env(env_id)] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
        size = int(np.prod(self.envs.single_observation_space.shape or (1,)))
        self.agent = Agent(size, self.envs.single_action_space)
        self.optimizer = torch.optim.Adam(self.agent.parameters(), RATE, eps=1e-5)
        space = self.envs.single_action_space
        self.observations = torch.zeros(num_steps, num_envs, size)
        self.actions = torch.zeros((num_steps, num_envs, *(space.shape or ())))
        self.log_probs, self.values = torch.zeros(num_steps, num_envs), torch.zeros(num_steps, num_envs)
        self.rewards, self.ends = torch.zeros(num_steps, num_envs), torch.zeros(num_steps, num_envs)
        self.observation = torch.as_tensor(self.envs.reset(seed=0)[0], dtype=torch.float32)
        self.step = 0
        self.returns: list[float] = []

    @torch.no_grad()
    def collect(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Fill the rollout; advantages and returns by generalised advantage estimation."""
        for t in range(self.num_steps):
            policy, self.values[t] = self.agent(self.observation)
            action = policy.sample()
            self.observations[t], self.actions[t] = self.observation, action
            self.log_probs[t] = policy.log_prob(action)
            observation, reward, terminated, truncated, info = self.envs.step(action.numpy())
            ended = terminated | truncated
            self.rewards[t] = torch.as_tensor(reward, dtype=torch.float32)
            self.ends[t] = torch.as_tensor(ended, dtype=torch.float32)
            if ended.any():
                self.returns += info["final_info"]["episode"]["r"][ended].tolist()
            self.observation = torch.as_tensor(observation, dtype=torch.float32)
            self.step += len(reward)
        next_value = self.agent(self.observation)[1]
        advantages = torch.zeros_like(self.rewards)
        advantage = torch.zeros_like(next_value)
        for t in reversed(range(self.num_steps)):
            alive = 1.0 - self.ends[t]
            delta = self.rewards[t] + GAMMA * alive * next_value - self.values[t]
            advantage = delta + GAMMA * GAE_LAMBDA * alive * advantage
            advantages[t], next_value = advantage, self.values[t]
        return advantages, advantages + self.values

    def iterate(self) -> None:
        advantages, targets = (x.flatten() for x in self.collect())
        observations, actions = self.observations.flatten(0, 1), self.actions.flatten(0, 1)
        old_log_probs, old_values = self.log_probs.flatten(), self.values.flatten()
        for _ in range(self.num_epochs):
            for rows in torch.randperm(len(observations)).split(self.minibatch):
                policy, value = self.agent(observations[rows])
                ratio = (policy.log_prob(actions[rows]) - old_log_probs[rows]).exp()
                advantage = advantages[rows]
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).mean()
                clipped = old_values[rows] + (value - old_values[rows]).clamp(-CLIP, CLIP)
                errors = torch.maximum((value - targets[rows]) ** 2, (clipped - targets[rows]) ** 2)
                loss = -gain + VALUE_COEF * 0.5 * errors.mean() - ENTROPY_COEF * policy.entropy().mean()
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.agent.parameters(), MAX_NORM)
                self.optimizer.step()


def speed(loop: Loop, warm_up_steps: int, seconds: float, clock: Callable[[], float] = time.perf_counter) -> float:
    """Environment steps a second over whole iterations, after a warm-up."""
    while loop.step < warm_up_steps:
        loop.iterate()
    step, started = loop.step, clock()
    while clock() - started < seconds:
        loop.iterate()
    return (loop.step - step) / (clock() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env")
    parser.add_argument("--steps", type=int, default=100_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    loop = Loop(options.env, 8, 128, 4, 4)
    while loop.step < options.steps:
        loop.iterate()
        if loop.returns:
            print(f"step {loop.step:,}: mean return of the last 100 episodes {np.mean(loop.returns[-100:]):.1f}")


if __name__ == "__main__":
    main()
