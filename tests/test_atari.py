"""Atari: the rules of docs/atari.md against a plain emulator, exact resume, and the way through the command line."""

import csv
import itertools
import json
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import gymnasium as gym
import numpy as np
import pytest
from commands import call, complaint, tree
from killing import differences, run_to_end, run_with_kills

import p3o.evaluate
import p3o.video
from p3o import A2C, P3O, train
from p3o.algorithms import ALGORITHMS
from p3o.device_actor import pack
from p3o.envs import atari_games, emulator
from p3o.envs.atari import STACK, AtariGame, AtariVectorEnv
from p3o.envs.atari_games import find_game, is_atari
from p3o.envs.making import make_env
from p3o.errors import UserError
from p3o.experiments.reference import paper_tasks
from p3o.jobs import Job, resolve, set_up

ale_py = pytest.importorskip("ale_py", reason="atari: ale-py is not installed")

NOOP, FIRE = 0, 1
TINY = {
    "num_envs": 2,
    "num_steps": 8,
    "conv_channels": "4,4,4",
    "conv_features": 16,
    "replay_size": 32,
    "burn_in": 16,
    "replay_samples": 2,
}


def settings(algo):
    known = ALGORITHMS[algo].config.__dataclass_fields__
    return ["--set", *(f"{name}={value}" for name, value in TINY.items() if name in known)]


def make(env_id="BreakoutNoFrameskip-v4", num_envs=1, seed=0, num_spares=None, **options):
    return AtariVectorEnv(find_game(env_id, options), num_envs, np.random.SeedSequence(seed), num_spares)


class Plain:
    """One emulator stepped frame by frame, as slowly and simply as can be."""

    def __init__(self, game, seed, num_noops):
        self.ale = ale_py.ALEInterface()
        self.ale.setLoggerMode(ale_py.LoggerMode.Error)
        self.ale.setFloat("repeat_action_probability", game.repeat_action_probability)
        self.ale.setInt("random_seed", seed)
        self.ale.loadROM(ale_py.roms.get_rom_path(game.rom))
        self.actions = self.ale.getMinimalActionSet()
        self.ale.reset_game()
        for _ in range(num_noops):
            self.ale.act(0)

    def step(self, action):
        """Reward, lives, end and the 84 × 84 picture of four frames."""
        reward, screens = 0, []
        for _ in range(4):
            if not self.ale.game_over():
                reward += self.ale.act(self.actions[action])
                screens.append(self.ale.getScreenGrayscale())
        return reward, self.ale.lives(), self.ale.game_over(), np.maximum(*screens[-2:])


def shrunk(screen):
    """The mean of what lies under each of 84 × 84 pixels."""
    return shares(screen.shape[0]) @ screen @ shares(screen.shape[1]).T


def shares(length):
    """How much of each of so many pixels lies under each of 84, [84, length]."""
    edges = np.linspace(0, length, 85)
    ends, starts = (np.clip(edge[:, None] - np.arange(length), 0, 1) for edge in (edges[1:], edges[:-1]))
    return (ends - starts) * 84 / length


class Row:
    """What one environment's row was, as numbers."""

    def __init__(self, step, index=0):
        self.reward = float(step.reward[index])
        self.is_terminated, self.is_truncated = bool(step.terminated[index]), bool(step.truncated[index])
        self.is_game_end, self.is_masked = bool(step.is_game_end[index]), bool(step.is_masked[index])
        self.is_end = self.is_terminated or self.is_truncated


def play(env, actions):
    """Rows of one environment, with what was sent and how many lives were left."""
    for action in actions:
        sent = FIRE if env.is_waiting[0] else int(action)
        lives = int(env._lives[0])
        yield sent, lives, Row(env.step(np.array([action])))


def draws(number, seed=0):
    """Endless random actions."""
    rng = np.random.default_rng(seed)
    while True:
        yield rng.integers(number)


def test_stacks():
    env = make(num_envs=2)
    before = env.reset().images[0].copy()
    assert before.shape == (2, 84, 84, STACK)
    assert not before[..., :-1].any()
    assert before[..., -1].any()
    rng, ends, masked_ends = np.random.default_rng(0), 0, 0
    for _ in range(260):
        step = env.step(rng.integers(0, 4, 2))
        now = step.observation.images[0]
        for index in range(2):
            row = Row(step, index)
            if row.is_end:
                assert not now[index, ..., :-1].any()
                np.testing.assert_array_equal(step.final_observation.images[0][index, ..., :-1], before[index, ..., 1:])
                ends += 1
                masked_ends += row.is_masked
            else:
                np.testing.assert_array_equal(now[index, ..., :-1], before[index, ..., 1:])
            assert now[index, ..., -1].any()
            if step.is_quiet:
                assert not row.is_end
                assert not row.is_masked
                assert not env.is_waiting[index]
        before = now.copy()
    assert ends > 6
    env.close()


def test_halves_in_turn_are_the_same_steps():
    """Spares are taken in the same order; a half's newest frames are those of the whole, with their starts."""
    env, other = (make(num_envs=4, max_num_frames_per_episode=200) for _ in range(2))
    env.has_cores_for_all, other.has_cores_for_all = False, True  # the order of asking changes nothing
    halves, rng, games = (slice(0, 2), slice(2, 4)), np.random.default_rng(0), 0
    np.testing.assert_array_equal(env.reset().images[0], other.reset().images[0])
    actions = rng.integers(0, 4, (130, 4))
    for rows in halves:
        other.send(actions[0, rows], rows)
    for t, action in enumerate(actions):
        whole = env.step(action)
        now, ended = whole.observation.images[0], whole.terminated | whole.truncated
        games += whole.is_game_end.sum()
        for rows in halves:
            half = other.receive(rows)
            for name in ("reward", "terminated", "truncated", "is_masked", "is_game_end", "newest"):
                np.testing.assert_array_equal(getattr(half, name), getattr(whole, name)[rows], err_msg=name)
            np.testing.assert_array_equal(half.newest, pack(now[rows, ..., -1], ended[rows]))
            finals = (step.final_observation.images[0] for step in (half, whole))
            np.testing.assert_array_equal(next(finals)[ended[rows]], next(finals)[rows][ended[rows]])
            if t < 129:
                other.send(actions[t + 1, rows], rows)
                assert other._is_broken
    assert not other._is_broken
    assert games >= 8
    np.testing.assert_array_equal(env.current().images[0], other.current().images[0])
    check_same(env, other, 20)


def test_halves_in_threads_are_the_same_games():
    """However far one is ahead, each takes its own spares; and a snapshot brings these back."""
    envs = [make(num_envs=8, max_num_frames_per_episode=160) for _ in range(3)]
    whole, *others = envs
    for env in envs:
        env.reset()
    actions = np.random.default_rng(0).integers(0, 4, (100, 8))
    expected = [whole.step(action) for action in actions]
    assert sum(step.is_game_end.sum() for step in expected) >= 16
    assert all(sum(step.is_game_end[rows].any() for step in expected) >= 4 for rows in whole.parts)

    def play_half(env, rows, delay):
        found = []
        for action in actions:
            time.sleep(delay)
            env.send(action[rows], rows)
            step = env.receive(rows)
            found.append(step._replace(newest=step.newest.copy()))
        return found

    for env, delays in zip(others, ((0.0, 0.005), (0.005, 0.0)), strict=True):
        with ThreadPoolExecutor(2) as threads:
            futures = [threads.submit(play_half, env, *pair) for pair in zip(env.parts, delays, strict=True)]
        for rows, future in zip(env.parts, futures, strict=True):
            for step, (half, all_of_it) in enumerate(zip(future.result(), expected, strict=True)):
                for name in ("reward", "terminated", "truncated", "is_masked", "is_game_end"):
                    np.testing.assert_array_equal(
                        getattr(half, name), getattr(all_of_it, name)[rows], err_msg=f"{name} at {step}"
                    )
        np.testing.assert_array_equal(env.current().images[0], whole.current().images[0])
        assert not env._is_broken
    stored = [json.dumps(env.snapshot(), default=np.ndarray.tolist) for env in envs]
    assert stored[0] == stored[1] == stored[2]
    others[0].close()
    others[0].restore(whole.snapshot())
    others[1].close()
    check_same(whole, others[0], 60, 4)


@pytest.mark.slow
def test_a_trainer_with_halves_in_threads_learns_as_with_halves_in_turn(monkeypatch):
    """Also twice, and after a resume in the middle."""
    monkeypatch.setattr(train, "num_groups", lambda env, device: len(env.parts))
    own = {"num_envs": 8, "num_steps": 8, "conv_channels": (2, 2, 2), "conv_features": 4}
    job = Job("BreakoutNoFrameskip-v4", "a2c", 10_000, settings=own, env_kwargs={"max_num_frames_per_episode": 160})
    trainers, halfway = [set_up(job).trainer for _ in range(4)], None
    found = []
    for trainer, has_threads in zip(trainers, (False, True, True, True), strict=True):
        trainer._update = trainer._update or trainer._compile()
        trainer.rollout.has_threads = has_threads
        if trainer is trainers[-1]:
            assert trainer.restore(halfway) == []
        episodes = []
        for number in range(trainer.iteration, 12):
            if number == 6:
                halfway = trainer.snapshot()
            episodes += trainer.iterate(10_000).episodes
        snapshot = trainer.snapshot()
        del snapshot["seconds"]
        found.append((json.dumps(snapshot, default=np.ndarray.tolist), episodes[-8:]))
        trainer.env.close()
    assert len(episodes) >= 8
    assert found[0] == found[1] == found[2] == found[3]


@pytest.mark.parametrize("env_id", ["BreakoutNoFrameskip-v4", "QbertNoFrameskip-v4", "ALE/Breakout-v5"])
def test_a_game_is_that_of_a_plain_emulator(env_id):
    env = make(env_id)
    env.reset()
    player = env._players[0]
    noops = player.first().num_frames
    assert 1 <= noops <= 30
    plain = Plain(env.game, player._seed(0), noops)
    total, expected, lost, last_lives = 0.0, 0.0, 0, plain.ale.lives()
    for sent, _, row in play(env, draws(4)):
        reward, lives, is_over, screen = plain.step(sent)
        assert row.reward == reward
        assert row.is_game_end == is_over
        assert row.is_terminated == (is_over or 0 < lives < last_lives)  # Qbert shows 0 lives before it is over
        total, expected, lost = total + row.reward, expected + reward, lost + (0 < lives < last_lives)
        last_lives = lives
        if is_over:
            break
        assert abs(shrunk(screen) - env.current().images[0][0, ..., -1]).max() <= 1  # rounding is the emulator's
    assert total == expected
    assert lost == {"BreakoutNoFrameskip-v4": 4, "ALE/Breakout-v5": 4, "QbertNoFrameskip-v4": 3}[env_id]
    env.close()


def test_no_lives_left_is_no_further_end_before_the_game_is_over():
    env = make("QbertNoFrameskip-v4")
    env.reset()
    player, told = env._players[0], iter([(4, False), (3, False), (0, False), (0, False), (0, True)])

    class Told:
        send, start, first, picture = player.send, player.start, player.first, None

        def receive(self):
            lives, is_over = next(told)
            return player.receive()._replace(lives=lives, is_over=is_over)

    env._players[0] = Told()
    rows = [env.step(np.zeros(1, int)) for _ in range(4)]
    assert [bool(row.terminated[0]) for row in rows] == [False, True, False, False]
    assert not any(row.is_game_end.any() for row in rows if row.is_game_end is not None)
    last = env.step(np.zeros(1, int))
    assert [bool(flag[0]) for flag in (last.terminated, last.truncated, last.is_game_end)] == [True, False, True]
    env.close()


def test_a_player_who_does_nothing_plays_all_five_lives():
    """Breakout waits for FIRE after every ball: with no-ops alone a game would never end."""
    env = make()
    env.reset()
    rows = []
    for sent, lives, row in play(env, itertools.repeat(NOOP)):
        rows.append((sent, lives, row))
        if row.is_game_end:
            break
        assert len(rows) < 400
    ends = [lives for _, lives, row in rows if row.is_end]
    assert ends == [5, 4, 3, 2, 1]
    is_first = [True, *(row.is_end for _, _, row in rows[:-1])]
    assert [row.is_masked for _, _, row in rows] == is_first
    assert [sent == FIRE for sent, _, _ in rows] == is_first
    env.close()


def test_a_game_without_fire_has_no_masked_rows():
    env = make("FreewayNoFrameskip-v4")
    env.reset()
    assert not any(row.is_masked for _, _, row in itertools.islice(play(env, draws(3)), 20))
    env.close()


def test_the_frame_cap_truncates():
    env = make("PongNoFrameskip-v4", max_num_frames_per_episode=200)
    env.reset()
    noops = env._players[0].first().num_frames
    rows = [row for _, _, row in itertools.islice(play(env, draws(6)), 60)]
    first = next(t for t, row in enumerate(rows) if row.is_end)
    assert first + 1 == -(-(200 - noops) // 4)
    assert rows[first].is_truncated
    assert rows[first].is_game_end
    assert not rows[first].is_terminated
    assert rows[first + 1].is_masked
    env.close()


def test_caps_and_sticky_actions_of_both_spellings():
    assert find_game("PongNoFrameskip-v4", {})[1:] == (0.0, False, 400_000, 4, 30)
    assert find_game("SpaceInvadersNoFrameskip-v4", {}).max_num_frames_per_episode == 300_000
    assert find_game("PongNoFrameskip-v0", {}).repeat_action_probability == 0.25
    assert find_game("ALE/Pong-v5", {})[1:] == (0.25, False, 108_000, 4, 30)
    assert find_game("ale_py:ALE/Pong-v5", {"repeat_action_probability": 0})[1] == 0
    assert resolve(Job("ALE/Pong-v5", env_kwargs={"full_action_space": True})).specs.action.sizes == (18,)


def test_all_games_of_the_paper_are_there():
    games = paper_tasks("atari")
    assert len(games) == 49
    for name in games:
        assert find_game(f"{name}NoFrameskip-v4", {}).rom == find_game(f"ALE/{name}-v5", {}).rom
    shown = call("list", "environments").out.splitlines()
    assert {f"{name}NoFrameskip-v4" for name in games} | {f"ALE/{name}-v5" for name in games} <= set(shown)


@pytest.mark.slow
@pytest.mark.parametrize("name", paper_tasks("atari"))
def test_each_game_of_the_paper_plays_and_comes_back(name):
    env = make(f"{name}NoFrameskip-v4", num_spares=0)
    env.reset()
    for _ in itertools.islice(play(env, draws(env.action_space.n)), 60):
        pass
    other = make(f"{name}NoFrameskip-v4", num_spares=0)
    assert other.restore(env.snapshot()) == []
    check_same(env, other, 40)


# Options and odd games ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frameskip", [1, 3])
def test_frameskip(frameskip):
    env = make(frameskip=frameskip)
    env.reset()
    player = env._players[0]
    before = player.first().num_frames
    for number in (1, 2, 3):
        player.send(NOOP)
        assert player.receive().num_frames == before + number * frameskip
    env.close()


def test_the_full_set_of_actions_can_be_played():
    envs = [make("PongNoFrameskip-v4", full_action_space=is_full) for is_full in (True, False)]
    full, minimal = envs
    assert [env.action_space.n for env in envs] == [18, 6]
    names = [atari_games.action_names("pong", is_full) for is_full in (True, False)]
    for env in envs:
        env.reset()
    for name in ["NOOP", *["RIGHT"] * 12, *["LEFT"] * 12]:
        for env, actions in zip(envs, names, strict=True):
            env.step(np.array([actions.index(name)]))
        np.testing.assert_array_equal(full.current().images[0], minimal.current().images[0])
    for env in envs:
        env.close()


@pytest.mark.parametrize("name", ["Pong", "NameThisGame"])
def test_games_start_after_one_to_all_of_the_no_ops(name):
    """Also where the emulator itself has pressed buttons before, which are frames too."""
    env = make(f"{name}NoFrameskip-v4", noop_max=3)
    start = {"Pong": 0, "NameThisGame": 134}[name]
    env.reset()
    player, found = env._players[0], set()
    for _ in range(40):
        player.start()
        found.add(player.first().num_frames - start)
    assert found == {1, 2, 3}
    env.close()


def test_no_no_ops_at_all():
    env = make(noop_max=0)
    env.reset()
    assert env._players[0].first().num_frames == 0
    env.close()


def test_fire_is_pressed_where_it_is_the_first_action():
    env = make("VideoCheckersNoFrameskip-v4")
    assert atari_games.action_names(env.game.rom, False)[0] == "FIRE"
    env.reset()
    assert env.is_waiting[0]
    assert env.step(np.array([3])).is_masked[0]
    assert env._players[0].record.log.tolist() == [0]
    env.close()


def test_a_log_that_is_long_enough_is_the_last_of_its_seed(monkeypatch):
    monkeypatch.setattr(emulator, "LONGEST_LOG", 50)
    env = make(num_spares=0)
    env.reset()
    player, seen = env._players[0], []
    for _ in range(4):
        for _ in range(30):
            player.send(NOOP)
            player.receive()
        player.start()
        player.first()
        seen.append((player.record.seed_number, len(player.record.log)))
    assert seen == [(0, 31), (1, 0), (1, 31), (2, 0)]
    env.close()


def test_the_spare_that_has_waited_longest_takes_over():
    env = make("PongNoFrameskip-v4", num_spares=2, max_num_frames_per_episode=60)
    env.reset()
    order = [env._emulators.index(env._players[0])]
    while len(order) < 7:
        if env.step(np.array([NOOP])).is_game_end[0]:
            order.append(env._emulators.index(env._players[0]))
    assert order == [0, 1, 2, 0, 1, 2, 0]
    env.close()


def test_a_game_that_is_over_at_its_cap_is_no_time_limit():
    env = make("PongNoFrameskip-v4", max_num_frames_per_episode=200)
    env.reset()
    player = env._players[0]

    class Told:
        send, start, first, picture = player.send, player.start, player.first, None

        def receive(self):
            return player.receive()._replace(is_over=True, num_frames=200)

    env._players[0] = Told()
    row = Row(env.step(np.zeros(1, int)))
    assert (row.is_terminated, row.is_truncated, row.is_game_end) == (True, False, True)
    env.close()


# Resume ---------------------------------------------------------------------------------------------------------------


def check_same(env, other, rows, number=3):
    rng = np.random.default_rng(5)
    for _ in range(rows):
        action = rng.integers(0, number, env.num_envs)
        np.testing.assert_array_equal(env.is_waiting, other.is_waiting)
        one, two = env.step(action), other.step(action)
        np.testing.assert_array_equal(one.observation.images[0], two.observation.images[0])
        for name in ("reward", "terminated", "truncated", "is_masked", "is_game_end"):
            np.testing.assert_array_equal(getattr(one, name), getattr(two, name), err_msg=name)
    env.close()
    other.close()


@pytest.mark.parametrize("env_id", ["BreakoutNoFrameskip-v4", "ALE/Breakout-v5"])
@pytest.mark.parametrize("moment", ["in a life", "after a lost life", "after a game"])
def test_a_snapshot_goes_on_bit_by_bit(env_id, moment, monkeypatch):
    monkeypatch.setattr(emulator, "LONGEST_LOG", 100)  # so that some games start from a new seed
    env = make(env_id, 2)
    env.reset()
    rng = np.random.default_rng(3)
    for t in itertools.count():
        step = env.step(rng.integers(0, 4, 2))
        is_there = {
            "in a life": t > 60 and step.is_quiet,
            "after a lost life": t > 20 and (step.terminated & ~step.is_game_end).any(),
            "after a game": step.is_game_end.any(),
        }
        if is_there[moment]:
            break
    other = make(env_id, 2)
    stored = env.snapshot()
    assert other.restore(stored) == []
    assert json.dumps(other.snapshot(), default=np.ndarray.tolist) == json.dumps(stored, default=np.ndarray.tolist)
    check_same(env, other, 150, 4)


def test_a_snapshot_comes_back_where_one_half_was_a_step_ahead():
    env, other = make(num_envs=8), make(num_envs=8)
    for one in (env, other):
        one.reset()
    for _ in range(40):
        env.step(np.full(8, 2))
    other.send(np.zeros(4, np.int64), other.parts[0])
    other.receive(other.parts[0])
    assert other.restore(env.snapshot()) == []
    np.testing.assert_array_equal(other.current().images[0], env.current().images[0])
    check_same(env, other, 20, 4)


def test_a_game_that_does_not_come_back_starts_afresh():
    env, other = make(num_envs=2), make(num_envs=2)
    env.reset()
    for _ in range(30):
        env.step(np.array([2, 3]))
    stored = env.snapshot()
    stored["score"][1] += 1
    assert other.restore(stored) == [1]
    assert not other.current().images[0][1, ..., :-1].any()
    np.testing.assert_array_equal(other.current().images[0][0], env.current().images[0][0])
    np.testing.assert_array_equal(other.is_waiting, [False, True])
    with pytest.raises(ValueError, match="2 games"):
        make(num_envs=1).restore(stored)
    env.close()
    other.close()


def test_a_trainer_counts_from_nothing_in_a_game_that_does_not_come_back():
    own = {"num_envs": 2, "num_steps": 30, "conv_channels": (2, 2, 2), "conv_features": 4}
    one, other = (set_up(Job("PongNoFrameskip-v4", "a2c", 10_000, settings=own)).trainer for _ in range(2))
    one._update = one._compile()
    for _ in range(2):
        one.iterate(10_000)
    assert (one.rollout.lengths > 30).all()
    one.rollout.returns[:] = 5.0
    stored = one.snapshot()
    stored["environments"]["score"][1] += 1
    assert other.restore(stored) == [1]
    assert other.rollout.lengths.tolist() == [one.rollout.lengths[0], 0]
    assert other.rollout.returns.tolist() == [5.0, 0.0]
    one.env.close()
    other.env.close()


def test_resets_on_top_of_each_other():
    env, other = make(num_envs=2), make(num_envs=2)
    for one in (env, other):
        for _ in range(3):
            one.reset()
    assert [e.record.seed_number for e in env._emulators] == [2, 2, 2]
    np.testing.assert_array_equal(env.current().images[0], other.current().images[0])
    check_same(env, other, 40)


def test_a_reset_after_an_exception_plays_other_games():
    env = make()
    first = env.reset().images[0].copy()
    env.step(np.array([0]))
    with pytest.raises(TypeError):
        env.step(np.array(["left"]))
    frames = {env._players[0].first().num_frames}
    for _ in range(3):
        env._is_under_way[:] = True
        assert env.reset().images[0].shape == first.shape
        frames.add(env._players[0].first().num_frames)
    assert len(frames) > 1
    env.step(np.array([0]))
    env.close()


def test_killed_and_resumed(tmp_path):
    # short games, so that lives, games and new seeds are met
    arguments = ["BreakoutNoFrameskip-v4", "--steps", "300", *settings("p3o"), "checkpoint_every=16"]
    arguments += ["--env-set", "max_num_frames_per_episode=400"]
    run_to_end(tmp_path / "alone", arguments)
    assert run_with_kills(tmp_path / "killed", arguments, 2, 12.0, random.Random(1)) >= 1
    assert differences(tmp_path / "alone", tmp_path / "killed") == []
    with open(tmp_path / "alone" / "episodes.csv", newline="") as file:
        assert len(list(csv.DictReader(file))) >= 2


# From the command line ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("atari") / "run"
    cap = ["--env-set", "max_num_frames_per_episode=320"]
    result = call("train", "PongNoFrameskip-v4", "--steps", 400, "--out", folder, *settings("p3o"), *cap)
    assert result.code == 0, result
    assert "A.L.E" not in result.err
    return folder


def test_train(run):
    config = json.loads((run / "config.json").read_text())
    assert config["settings"]["reward_transform"] == "sign"
    assert not config["settings"]["normalize_reward"]
    with open(run / "episodes.csv", newline="") as file:
        episodes = list(csv.DictReader(file))
    # 80 steps of 4 frames less the no-ops (1 to 30 frames) and FIRE, which is no step of the agent's
    assert len(episodes) >= 4
    assert all(71 <= int(episode["length"]) <= 79 for episode in episodes)
    assert all(float(episode["return"]) <= 0 for episode in episodes)


def test_eval_video_and_predict(run, tmp_path):
    result = call("eval", run, "--episodes", 2, "--json")
    assert result.code == 0, result
    assert 71 <= json.loads(result.out)["mean_length"] <= 79
    agent = P3O.load(run)
    env = make_env("PongNoFrameskip-v4", {})
    observation, _ = env.reset(seed=1)
    for raw in (observation, np.moveaxis(observation, -1, 0)):
        action, _ = agent.predict(raw, deterministic=True)
        assert env.action_space.contains(action)
    assert agent.predict(np.stack([observation] * 3))[0].shape == (3,)
    env.close()
    pytest.importorskip("imageio_ffmpeg", reason="video: imageio-ffmpeg is not installed")
    result = call("video", run, "--out", tmp_path / "pong.gif")
    assert result.code == 0, result
    assert (tmp_path / "pong.gif").stat().st_size > 1000


@pytest.mark.parametrize("algo", ["a2c", "ppo", "acer"])
def test_the_other_algorithms_train(algo, tmp_path):
    words = ["ALE/Breakout-v5", "--algo", algo, "--steps", 40, "--out", tmp_path / "run", *settings(algo)]
    assert call("train", *words).code == 0
    assert (tmp_path / "run" / "model").exists()


def test_whole_games_for_evaluation():
    """Five lives and FIRE are handled inside: no end but the game's; the same seed gives the same game."""
    scores = []
    for _ in range(2):
        env = make_env("BreakoutNoFrameskip-v4", {}, render_mode="rgb_array")
        assert isinstance(env, AtariGame)
        observation, _ = env.reset(seed=4)
        assert env.observation_space.contains(observation)
        total, length, is_over = 0.0, 0, False
        for action in draws(4):
            observation, reward, is_terminated, is_truncated, _ = env.step(action)
            total, length, is_over = total + reward, length + 1, is_terminated
            assert env.render().shape == (210, 160, 3)
            assert not is_truncated
            if is_over:
                break
        assert length > 100
        scores.append((total, length, observation.sum()))
        env.reset()
        env.step(0)
        env.close()
    assert scores[0] == scores[1]


def test_a_lost_life_goes_on_with_fire_inside_a_step_and_its_reward_counts(monkeypatch):
    env = make_env("BreakoutNoFrameskip-v4", {})
    env.reset(seed=0)
    fire, fired = AtariGame._fire, []

    def paid_fire(self):
        fired.append(self._vector._lives[0])
        step = fire(self)
        return step._replace(reward=step.reward + 7)

    monkeypatch.setattr(AtariGame, "_fire", paid_fire)
    rewards = []
    while not fired:
        rewards.append(env.step(NOOP)[1])
        assert not env._vector.is_waiting[0]
    assert rewards[:-1] == [0.0] * (len(rewards) - 1)
    assert rewards[-1] == 7
    assert fired == [4]
    env.close()


def test_a_game_that_was_given_up_is_not_gone_on_with():
    env = make_env("BreakoutNoFrameskip-v4", {})
    env.reset(seed=0)
    while env._vector._lives[0] == 5:
        env.step(NOOP)
    env.reset()
    assert env._vector._lives[0] == 5
    assert not env.reset()[0][..., 0].any()
    env.close()


def test_the_lowest_cap_leaves_the_player_a_step():
    env = make_env("BreakoutNoFrameskip-v4", {"max_num_frames_per_episode": 42})
    env.reset(seed=0)
    for _ in range(30):  # games, whose first step is FIRE and no decision
        steps = 1
        while not env.step(NOOP)[3]:
            steps += 1
        assert steps >= 2
        env.reset()
    env.close()


@pytest.mark.parametrize(("name", "shape"), [("Pong", (210, 160, 3)), ("Carnival", (214, 160, 3))])
def test_a_film_has_the_shape_of_the_screen(name, shape):
    env = make_env(f"{name}NoFrameskip-v4", {}, render_mode="rgb_array")
    env.reset(seed=0)
    assert env.render().shape == shape
    env.close()


def test_a_film_ends_with_the_last_picture_of_the_game(monkeypatch):
    env = make_env("PongNoFrameskip-v4", {"max_num_frames_per_episode": 120}, render_mode="rgb_array")
    receive, shown = emulator.Emulator.receive, []

    def watched(self):
        frame = receive(self)
        shown.append(self.picture.copy())
        return frame

    monkeypatch.setattr(emulator.Emulator, "receive", watched)
    env.reset(seed=0)
    is_over = False
    while not is_over:
        np.testing.assert_array_equal(env.render(), shown[-1])
        is_over = env.step(2)[3]
    np.testing.assert_array_equal(env.render(), shown[-1])
    last = env.render().copy()
    env.reset()
    assert (env.render() != last).any()
    env.close()


class Waits:
    """A policy that does nothing."""

    def act(self, observations, rng):
        return np.zeros(len(observations), np.int64)


def test_a_game_in_which_nothing_happens_is_given_up_by_an_evaluation(monkeypatch):
    monkeypatch.setattr(p3o.evaluate, "GAME_STEPS", 60)
    env = make_env("RiverraidNoFrameskip-v4", {})
    played = p3o.evaluate.evaluate(Waits(), env, 2, run_seed=0, step=100)
    assert [length for _, length in played] == [60, 60]
    monkeypatch.undo()
    assert p3o.evaluate.GAME_STEPS * 4 == 108_000  # frames: what -v5 has as its cap
    env.close()


def test_films_of_games_have_drawn_actions(run, tmp_path, monkeypatch):
    pytest.importorskip("imageio_ffmpeg", reason="video: imageio-ffmpeg is not installed")
    seen = []
    monkeypatch.setattr(p3o.video, "play", lambda model, env, episodes, seed, fixed, on_frame: seen.append(fixed))
    call("video", run, "--out", tmp_path / "pong.gif")
    assert seen == [False]


def test_our_preset_stores_no_final_frames_of_games():
    """They would be as many again; caps of games are hours away."""
    job = Job("ALE/Pong-v5")
    assert resolve(job).config.time_limit == "terminal"
    assert resolve(job._replace(settings={"time_limit": "bootstrap"})).config.time_limit == "bootstrap"


def test_the_picture_of_a_film_is_the_game_that_is_played():
    env = make_env("BreakoutNoFrameskip-v4", {}, render_mode="rgb_array")
    env.reset(seed=0)
    for action in itertools.islice(draws(4), 40):
        observation = env.step(action)[0]
        grey = env.render() @ np.array([0.299, 0.587, 0.114])
        rows = np.arange(84) * 210 // 84
        columns = np.arange(84) * 160 // 84
        small = grey[rows][:, columns]
        assert np.corrcoef(small.ravel(), observation[..., -1].ravel())[0, 1] > 0.9
    env.close()


# Bad input ------------------------------------------------------------------------------------------------------------

BAD = {  # words -> what the line has to name
    ("PonNoFrameskip-v4",): ("'PonNoFrameskip-v4'", "did you mean Pong"),
    ("Pong",): ("'Pong' has no version; one of PongNoFrameskip-v4, ALE/Pong-v5 is needed",),
    ("ale_py:ALE/Pong",): ("has no version; one of PongNoFrameskip-v4, ALE/Pong-v5 is needed",),
    ("ALE/Pnog-v5",): ("'ALE/Pnog-v5'", "did you mean Pong"),
    ("Pong-v4",): ("'Pong-v4'", "PongNoFrameskip-v4", "ALE/Pong-v5"),
    ("PongDeterministic-v4",): ("'PongDeterministic-v4'", "PongNoFrameskip-v4"),
    ("Pong-ram-v4",): ("'Pong-ram-v4'", "PongNoFrameskip-v4"),
    ("Pong-v5",): ("'Pong-v5'", "ALE/Pong-v5"),
    ("PongNoFrameskip-v4", "--env-set", "repeat_action_prob=0.1"): ("repeat_action_prob", "repeat_action_probability"),
    ("PongNoFrameskip-v4", "--env-set", "repeat_action_probability=2"): ("repeat_action_probability", "2"),
    ("PongNoFrameskip-v4", "--env-set", "full_action_space=5"): ("full_action_space", "5"),
    ("PongNoFrameskip-v4", "--env-set", "frameskip=0"): ("frameskip", "0", "at least 1"),
    ("PongNoFrameskip-v4", "--env-set", "noop_max=x"): ("noop_max", "'x'"),
    ("PongNoFrameskip-v4", "--env-set", "noop_max=1e400"): ("noop_max", "at most 10000"),
    ("PongNoFrameskip-v4", "--env-set", "noop_max=nan"): ("noop_max", "nan"),
    ("PongNoFrameskip-v4", "--env-set", "noop_max=10001"): ("noop_max", "at most 10000"),
    ("PongNoFrameskip-v4", "--env-set", "frameskip=2147483647"): ("frameskip", "at most 2147483646"),
    ("BreakoutNoFrameskip-v4", "--env-set", "max_num_frames_per_episode=41"): ("41 leaves no time", "at least 42"),
    ("BreakoutNoFrameskip-v4", "--env-set", "frameskip=200000"): ("400000 leaves no time", "at least 600030"),
    ("PongNoFrameskip-v4", "--env-set", "frameskip=1.5"): ("frameskip", "1.5"),
    ("PongNoFrameskip-v4", "--set", "reward_transform=clip"): ("reward_transform", "'clip'", "sign"),
}


@pytest.mark.parametrize(("words", "parts"), BAD.items(), ids=[" ".join(words) for words in BAD])
def test_bad_input(words, parts, tmp_path):
    line = complaint(call("train", *words, "--out", tmp_path / "run"))
    assert all(part in line for part in parts), line
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("env_id", ["PongNoFrameskip-v4", "ALE/Pong-v5"])
def test_without_the_extra(env_id, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    atari_games._roms.cache_clear()
    try:
        line = complaint(call("train", env_id, "--out", tmp_path / "run"))
        assert "install the extra p3o[atari]" in line
        assert env_id in line
        assert "p3o[atari]" in call("list", "environments").out
        assert not atari_games.is_atari("CartPole-v1")
    finally:
        atari_games._roms.cache_clear()
    assert tree(tmp_path) == {}


def test_ids_of_others_are_no_atari():
    for name in (
        "CartPole-v1",
        "HalfCheetah-v5",
        "Blackjack-v1",
        "module:Pong-v4",
        "module:PongNoFrameskip-v4",
        "",
        "ALE/",
    ):
        assert not atari_games.is_atari(name)
    with pytest.raises(UserError, match="Blackjack"):
        find_game("ALE/Blackjac-v5", {})


def test_a_vector_environment_of_ale_py_trains():
    env = ale_py.vector_env.AtariVectorEnv("breakout", num_envs=2)
    agent = A2C(env, seed=0, num_steps=2, conv_channels=(2, 2, 2), conv_features=4)
    assert agent.learn(8) is agent


def test_an_id_that_others_registered_is_theirs():
    gym.register("GridDeterministic-v0", "nowhere:Grid")
    try:
        assert not is_atari("GridDeterministic-v0")
    finally:
        del gym.registry["GridDeterministic-v0"]
    assert is_atari("PongNoFrameskip-v4")
    assert is_atari("ALE/Pong-v5")
