"""PPO for Atari in one file of torch, as people write it by hand: Nature CNN, `ale_py`'s vector environment, one loop.

    python benchmarks/torch_ppo_atari.py --game breakout --seconds 20 --compile --graphs --save torch.json
    python benchmarks/torch_ppo_atari.py --tiny              # no emulator, small shapes: does it run at all?

It stands for single-file implementations (CleanRL's shape; with `--compile --graphs` what LeanRL does to them) beside
`benchmarks/atari.py`: 8 environments × 128 steps, 4 epochs of 4 minibatches, as the `paper` PPO. Lives are not episodes
here and nothing is recorded, so it does a little less than ours.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

GAMMA, GAE_LAMBDA, CLIP, ENTROPY_COEF, VALUE_COEF, MAX_NORM, RATE = 0.99, 0.95, 0.1, 0.01, 0.5, 0.5, 7e-4


class Frames:
    """Stands for the emulator: noise, at no cost."""

    def __init__(self, num_envs: int):
        rng = np.random.default_rng(0)
        self.num_actions, self._strip = 4, rng.integers(0, 256, (8, num_envs, 4, 84, 84), np.uint8)
        self._time, self._nothing = 0, np.zeros(num_envs, bool)

    def reset(self) -> np.ndarray:
        return self._strip[0]

    def step(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        self._time += 1
        return self._strip[self._time % 8], action.astype(np.float32), self._nothing


class Games:
    """`ale_py`'s vector environment: frame-skip 4, 84 × 84 grey, stacks of 4, clipped rewards."""

    def __init__(self, game: str, num_envs: int):
        from ale_py.vector_env import AtariVectorEnv

        self._env = AtariVectorEnv(game, num_envs, noop_max=30, repeat_action_probability=0.0)
        self.num_actions = int(self._env.single_action_space.n)

    def reset(self) -> np.ndarray:
        return self._env.reset(seed=0)[0]

    def step(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        observation, reward, terminated, truncated, _ = self._env.step(action)
        return observation, np.asarray(reward, np.float32), terminated | truncated


def layer(module: Any, gain: float = 2**0.5) -> Any:
    nn.init.orthogonal_(module.weight, gain)
    nn.init.zeros_(module.bias)
    return module


class Agent(nn.Module):
    """One trunk, two heads."""

    def __init__(self, num_actions: int):
        super().__init__()
        self.trunk = nn.Sequential(
            layer(nn.Conv2d(4, 32, 8, stride=4)),
            nn.ReLU(),
            layer(nn.Conv2d(32, 64, 4, stride=2)),
            nn.ReLU(),
            layer(nn.Conv2d(64, 64, 3, stride=1)),
            nn.ReLU(),
            nn.Flatten(),
            layer(nn.Linear(64 * 7 * 7, 512)),
            nn.ReLU(),
        )
        self.policy, self.value = layer(nn.Linear(512, num_actions), 0.01), layer(nn.Linear(512, 1), 1.0)

    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.trunk(observation.float() / 255.0)
        return self.policy(features), self.value(features).squeeze(-1)


class Loop:
    """Rollout and update of PPO; `iterate` does one of each."""

    def __init__(self, env: Any, device: str, shape: tuple[int, int, int, int], is_compiled: bool, has_graphs: bool):
        torch.manual_seed(0)
        self.env, self.device = env, torch.device(device)
        self.num_envs, self.num_steps, self.num_epochs, num_minibatches = shape
        self.minibatch = self.num_envs * self.num_steps // num_minibatches
        self.agent = Agent(env.num_actions).to(self.device)
        self.optimizer = torch.optim.Adam(self.agent.parameters(), RATE, eps=1e-5, capturable=has_graphs)
        mode = "reduce-overhead" if has_graphs else "default"  # CUDA graphs, or not
        self.act = torch.compile(self._act, mode=mode) if is_compiled else self._act
        self.update = torch.compile(self._update, mode=mode) if is_compiled else self._update
        rows = (self.num_steps, self.num_envs)
        self.observations = torch.zeros((*rows, 4, 84, 84), dtype=torch.uint8, device=self.device)
        self.actions = torch.zeros(rows, dtype=torch.int64, device=self.device)
        self.log_probs, self.values = (torch.zeros(rows, device=self.device) for _ in range(2))
        self.rewards, self.ends = torch.zeros(rows), torch.zeros(rows)
        self.observation = self._to_device(env.reset())
        self.step = 0

    def _to_device(self, array: np.ndarray) -> torch.Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        return tensor.to(self.device, non_blocking=True)

    def _act(self, observation: torch.Tensor) -> tuple[torch.Tensor, ...]:
        logits, value = self.agent(observation)
        log_probs = logits.log_softmax(-1)
        # the exponential races: a sample without a wait for the host
        action = (log_probs.exp() / torch.empty_like(log_probs).exponential_(1)).argmax(-1)
        return action, log_probs.gather(-1, action[:, None]).squeeze(-1), value

    @torch.no_grad()
    def collect(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Fill the rollout; advantages and returns by generalised advantage estimation."""
        for t in range(self.num_steps):
            torch.compiler.cudagraph_mark_step_begin()
            action, log_prob, value = self.act(self.observation)
            self.observations[t], self.actions[t] = self.observation, action
            self.log_probs[t], self.values[t] = log_prob, value
            observation, reward, ended = self.env.step(action.cpu().numpy())
            self.rewards[t], self.ends[t] = torch.from_numpy(reward), torch.from_numpy(ended).float()
            self.observation = self._to_device(observation)
            self.step += self.num_envs
        next_value = self.agent(self.observation)[1]
        rewards, alive = self.rewards.to(self.device), 1.0 - self.ends.to(self.device)
        advantages, advantage = torch.zeros_like(rewards), torch.zeros_like(next_value)
        for t in reversed(range(self.num_steps)):
            delta = rewards[t] + GAMMA * alive[t] * next_value - self.values[t]
            advantage = delta + GAMMA * GAE_LAMBDA * alive[t] * advantage
            advantages[t], next_value = advantage, self.values[t]
        return advantages, advantages + self.values

    def _update(self, observation, action, old_log_prob, old_value, advantage, target):  # type: ignore[no-untyped-def]
        logits, value = self.agent(observation)
        policy = Categorical(logits=logits, validate_args=False)
        ratio = (policy.log_prob(action) - old_log_prob).exp()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).mean()
        clipped = old_value + (value - old_value).clamp(-CLIP, CLIP)
        errors = torch.maximum((value - target) ** 2, (clipped - target) ** 2)
        return -gain + VALUE_COEF * 0.5 * errors.mean() - ENTROPY_COEF * policy.entropy().mean()

    def iterate(self) -> None:
        advantages, targets = (x.flatten() for x in self.collect())
        rollout = (self.observations.flatten(0, 1), self.actions.flatten(), self.log_probs.flatten())
        samples = (*rollout, self.values.flatten(), advantages, targets)
        for _ in range(self.num_epochs):
            for rows in torch.randperm(len(advantages), device=self.device).split(self.minibatch):
                torch.compiler.cudagraph_mark_step_begin()
                loss = self.update(*(x[rows] for x in samples))
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.agent.parameters(), MAX_NORM)
                self.optimizer.step()

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def measure(loop: Loop, seconds: float, warm_up: int) -> dict[str, float]:
    """Environment steps a second over whole iterations, after a warm-up."""
    for _ in range(warm_up):
        loop.iterate()
    loop.wait()
    step, started, count = loop.step, time.perf_counter(), 0
    while time.perf_counter() - started < seconds or not count:
        loop.iterate()
        count += 1
    loop.wait()
    elapsed = time.perf_counter() - started
    return {"speed": (loop.step - step) / elapsed, "iteration_ms": 1e3 * elapsed / count}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--game", default="breakout", help="a ROM of ale_py, or synthetic")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--envs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--compile", action="store_true", help="torch.compile for acting and the loss")
    parser.add_argument("--graphs", action="store_true", help="with --compile: CUDA graphs")
    parser.add_argument(
        "--tf32", action="store_true", help="TF32 products in the dense layers too (torch has it on in convolutions)"
    )
    parser.add_argument("--tiny", action="store_true", help="no emulator and a small shape")
    parser.add_argument("--save", type=Path, help="file for the numbers")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = options.tf32
    if options.tiny:
        options.game, options.seconds, options.envs, options.steps = "synthetic", 0.5, 2, 4
    env = Frames(options.envs) if options.game == "synthetic" else Games(options.game, options.envs)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loop = Loop(env, device, (options.envs, options.steps, 4, 4), options.compile, options.graphs)
    found = measure(loop, options.seconds, 1 if options.tiny else 5)
    flags = {name: getattr(options, name) for name in ("game", "envs", "steps", "compile", "graphs", "tf32")}
    content = flags | {"torch": torch.__version__, "device": device} | found
    print(json.dumps(content))
    if options.save:
        options.save.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
