"""The packages of environments that `try_envs.py` tries: what pip installs, the options of the run, what to know."""

from collections.abc import Mapping
from dataclasses import dataclass, field

FACTORIES = "tools/env_factories.py"
NO_SCREEN = {"SDL_VIDEODRIVER": "dummy"}
NO_GL = {"MUJOCO_GL": "off"}


@dataclass(frozen=True)
class Package:
    """One row: the name is that of the package whose version is shown."""

    name: str
    options: tuple[str, ...]  # Of the run: which env, and wrappers.
    note: str = ""
    requires: tuple[str, ...] = ()  # What pip installs; by default the package alone.
    variables: Mapping[str, str] = field(default_factory=dict)  # Of the environment.
    key: str = ""  # The name on the command line, where a package has several rows.

    @property
    def called(self) -> str:
        return self.key or self.name

    @property
    def installed(self) -> tuple[str, ...]:
        return self.requires or (self.name,)


def of_id(name: str, env: str, note: str = "", *more: str, **others: object) -> Package:
    return Package(name, ("--env", env, *more), note, **others)  # type: ignore[arg-type]


def of_factory(name: str, function: str, note: str = "", *more: str, **others: object) -> Package:
    return Package(name, ("--env-factory", f"{FACTORIES}:{function}", *more), note, **others)  # type: ignore[arg-type]


FLATTEN = ("--wrappers", "gymnasium.wrappers:FlattenObservation")
PACKAGES = (
    of_id("gymnasium", "CartPole-v1", key="classic"),
    of_id("gymnasium", "LunarLander-v3", "pip needs a compiler and SWIG for Box2D on some systems",
          requires=("gymnasium[box2d]",), key="box2d"),
    of_id("gymnasium", "HumanoidStandup-v5", "no display needed", requires=("gymnasium[mujoco]",), key="mujoco"),
    of_id("gymnasium", "Taxi-v4", "random actions follow its `action_mask`", requires=("gymnasium[toy-text]",),
          key="toy-text"),
    of_id("ale-py", "ALE/Breakout-v5", "a seed costs as much as 250 steps: see `--no-episode-seeds`"),
    of_id("minigrid", "MiniGrid-Empty-8x8-v0", "its missions are texts: a wrapper leaves them out",
          "--wrappers", "minigrid.wrappers:ImgObsWrapper"),
    of_id("highway-env", "highway-fast-v0", "a step of `highway-v0` takes a third of a second"),
    of_id("gymnasium-robotics", "FetchReach-v4", "1.4.2 fails with MuJoCo 3.17: `pip install 'mujoco<3.4'`",
          requires=("gymnasium-robotics", "mujoco<3.4")),
    of_id("shimmy", "dm_control/walker-walk-v0", "the variable keeps it from looking for a display",
          requires=("shimmy[dm-control]", "mujoco<4"), variables=NO_GL, key="dm_control"),
    of_id("pettingzoo", "butterfly/pistonball-v6", "several agents; the variable is for machines without a display",
          requires=("pettingzoo[butterfly]",), variables=NO_SCREEN, key="butterfly"),
    of_id("pettingzoo", "sisl/pursuit-v5", "several agents", requires=("pettingzoo[sisl]",), variables=NO_SCREEN,
          key="sisl"),
    of_factory("mpe2", "mpe2", "several agents; a factory returns its `parallel_env`", variables=NO_SCREEN),
    of_factory("mo-gymnasium", "mo_gymnasium", "rewards are vectors: `LinearReward` makes numbers of them",
               variables=NO_SCREEN),
    of_id("PyFlyt", "PyFlyt.gym_envs:PyFlyt/QuadX-Hover-v4", variables=NO_SCREEN),
    of_id("panda-gym", "PandaReach-v3"),
    of_id("pybullet-envs-gymnasium", "pybullet_envs_gymnasium:HopperBulletEnv-v0"),
    of_id("flappy-bird-gymnasium", "flappy_bird_gymnasium:FlappyBird-v0", variables=NO_SCREEN),
    of_id("gym-pusht", "gym_pusht:gym_pusht/PushT-v0", variables=NO_SCREEN),
    of_id("gym-aloha", "gym_aloha:gym_aloha/AlohaInsertion-v0",
          "draws images: `MUJOCO_GL=egl` on a GPU, `osmesa` on the processor (Debian's libosmesa6)",
          variables={"MUJOCO_GL": "osmesa"}),
    of_id("gym-xarm", "gym_xarm:gym_xarm/XarmLift-v0", variables={"MUJOCO_GL": "osmesa"}),
    of_id("safety-gymnasium", "safety_gymnasium:SafetyPointGoal1-v0"),
    of_id("vizdoom", "vizdoom.gymnasium_wrapper:VizdoomBasic-v1", "each env starts a process of its own"),
    of_factory("nle", "nethack", "`reset(seed=...)` is ignored: call `env.unwrapped.seed` in a wrapper of your own"),
    of_factory("metaworld", "metaworld", "give each env a `seed` when it is made", variables=NO_GL),
    of_factory("robosuite", "robosuite",
               "`reset(seed=...)` is ignored; 1.5.2 fails with MuJoCo 3.17: `pip install 'mujoco<3.4'`",
               requires=("robosuite", "mujoco<3.4"), variables=NO_GL),
    of_factory("sumo-rl", "sumo", "each env starts a process of its own; the factory sets `SUMO_HOME`",
               requires=("sumo-rl", "eclipse-sumo")),
    of_factory("citylearn", "citylearn", "its data come with the package or from the network"),
    of_id("gym-anytrading", "gym_anytrading:stocks-v0"),
    of_id("tetris-gymnasium", "tetris_gymnasium.envs:tetris_gymnasium/Tetris", "", *FLATTEN),
    of_id("envpool", "Pong-v5", "natively vectorized: one call steps all envs of a rank", "--vectorization-mode",
          "envpool"),
    of_factory("jumanji", "jumanji", "JAX compiles in each env: a native env of your own is faster"),
    of_factory("ocatari", "ocatari"),
    of_factory("stable-retro", "retro", "one env in a process: `--num-envs` is the number of ranks"),
    of_factory("gym-electric-motor", "electric_motor"),
    of_id("memory-gym", "memory_gym:MortarMayhem-v0", variables=NO_SCREEN),
    of_factory("simglucose", "glucose"),
    of_id("popgym", "popgym:popgym-RepeatPreviousEasy-v0"),
    of_id("gymnasium-2048", "gymnasium_2048:gymnasium_2048/TwentyFortyEight-v0"),
    of_id("miniworld", "miniworld:MiniWorld-Hallway-v0", "draws with OpenGL: needs a display, or `xvfb-run`"),
    of_factory("bluesky-gym", "bluesky", variables=NO_SCREEN),
    of_factory("evogym", "evogym"),
    of_id("myosuite", "myosuite:myoElbowPose1D6MRandom-v0", variables=NO_GL),
)  # fmt: skip
