"""Envs of other packages that no id makes as a run needs them; each imports its package when it is called.

For the command line: --env-factory tools/env_factories.py:metaworld
"""

import os


def metaworld(env_index):
    import gymnasium
    import metaworld  # noqa: F401  # Registers the env.

    # Without a seed of its own it draws its tasks when it is made.
    return gymnasium.make("Meta-World/MT1", env_name="reach-v3", seed=env_index)


def robosuite():
    import robosuite
    from robosuite.wrappers import GymWrapper

    env = robosuite.make("Lift", robots="Panda", has_renderer=False, has_offscreen_renderer=False, use_camera_obs=False)
    return GymWrapper(env)


def sumo():
    import sumo
    import sumo_rl

    os.environ["SUMO_HOME"] = sumo.SUMO_HOME
    nets = os.path.join(os.path.dirname(sumo_rl.__file__), "nets", "2way-single-intersection", "single-intersection")
    files = {"net_file": f"{nets}.net.xml", "route_file": f"{nets}-vhvh.rou.xml"}
    return sumo_rl.SumoEnvironment(**files, single_agent=True, num_seconds=2000, sumo_warnings=False)


def mo_gymnasium():
    import mo_gymnasium

    return mo_gymnasium.wrappers.LinearReward(mo_gymnasium.make("minecart-v0"))


def mpe2():
    from mpe2 import simple_spread_v3

    return simple_spread_v3.parallel_env()


def citylearn():
    from citylearn.citylearn import CityLearnEnv
    from citylearn.wrappers import NormalizedObservationWrapper, StableBaselines3Wrapper

    env = CityLearnEnv("citylearn_challenge_2022_phase_1", central_agent=True)
    return StableBaselines3Wrapper(NormalizedObservationWrapper(env))


def jumanji():
    import jumanji
    from jumanji.wrappers import JumanjiToGymWrapper

    return JumanjiToGymWrapper(jumanji.make("Snake-v1"))


def retro():
    import stable_retro

    return stable_retro.make("Airstriker-Genesis-v0")


def electric_motor():
    import gym_electric_motor
    import gymnasium

    env = gym_electric_motor.make("Cont-CC-PMSM-v0")
    return gymnasium.wrappers.FlattenObservation(env)


def ocatari():
    from ocatari.core import OCAtari

    return OCAtari("ALE/Freeway-v5", mode="ram", obs_mode="ori", hud=True)


def glucose():
    from simglucose.envs import T1DSimGymnaisumEnv

    return T1DSimGymnaisumEnv(patient_name="adolescent#002")


def nethack():
    import gymnasium
    import nle  # noqa: F401  # Registers the env.

    env = gymnasium.make("NetHackScore-v0")
    return gymnasium.wrappers.FilterObservation(env, ["glyphs", "blstats"])


def bluesky():
    import bluesky_gym
    import gymnasium

    bluesky_gym.register_envs()
    return gymnasium.make("DescentEnv-v0")


def evogym():
    import evogym.envs  # noqa: F401  # Registers the env.
    import gymnasium
    import numpy

    muscles = [[3, 4, 3], [4, 3, 4], [3, 0, 3]]  # A robot with two legs: 0 is empty, 3 and 4 are muscles.
    return gymnasium.make("Walker-v0", body=numpy.array(muscles))
