"""The cart-pole system of Barto, Sutton and Anderson (1983), with the constants and the operations of Gymnasium.

One source for all backends: the functions take floats, arrays and tensors of float64, and are what Numba compiles.
They consist of additions, multiplications and divisions only.  So each machine gives the same bits, as long as its
compiler fuses no multiplication with an addition, which CPU backends never do.
"""

import math

from mpi_rollout.envs.kernels.philox import SCALE

GRAVITY = 9.8
MASS_POLE = 0.1
TOTAL_MASS = MASS_POLE + 1.0
HALF_LENGTH = 0.5
POLE_MASS_LENGTH = MASS_POLE * HALF_LENGTH
FORCE = 10.0
TAU = 0.02  # Seconds.
X_LIMIT = 2.4
THETA_LIMIT = 12 * 2 * math.pi / 360
RESET_BOUND = 0.05


def sine_cosine(theta):
    """Return the sine and the cosine by their Taylor polynomials of degree 11 and 12.

    For |theta| <= 0.2095, beyond which an episode has ended, they differ from the C library's by one unit in the last
    place at most, and that in less than one of a hundred values.
    """
    square = theta * theta
    sine = theta + theta * square * (
        -1 / 6 + square * (1 / 120 + square * (-1 / 5040 + square * (1 / 362880 + square * (-1 / 39916800))))
    )
    tail = 1 / 24 + square * (-1 / 720 + square * (1 / 40320 + square * (-1 / 3628800 + square * (1 / 479001600))))
    return sine, 1.0 - (square * 0.5 - square * square * tail)


def accelerations(sine, cosine, theta_dot, action):
    """Return the accelerations of cart and pole under action 0 (push to the left) or 1 (to the right)."""
    force = action * (2.0 * FORCE) - FORCE
    push = (force + POLE_MASS_LENGTH * (theta_dot * theta_dot) * sine) / TOTAL_MASS
    inertia = HALF_LENGTH * (4.0 / 3.0 - MASS_POLE * (cosine * cosine) / TOTAL_MASS)
    theta_acc = (GRAVITY * sine - cosine * push) / inertia
    return push - POLE_MASS_LENGTH * theta_acc * cosine / TOTAL_MASS, theta_acc


def euler(position, velocity, acceleration):
    """Return position and velocity `TAU` seconds later."""
    return position + TAU * velocity, velocity + TAU * acceleration


def semi_implicit_euler(position, velocity, acceleration):
    """Return position and velocity `TAU` seconds later; the position changes with the new velocity."""
    velocity = velocity + TAU * acceleration
    return position + TAU * velocity, velocity


def is_outside(x, theta):
    """Tell whether the cart has left its track, or the pole has fallen."""
    return (x < -X_LIMIT) | (x > X_LIMIT) | (theta < -THETA_LIMIT) | (theta > THETA_LIMIT)


def start_value(word):
    """Return a value of an episode's first state, uniform in (-0.05, 0.05), from a random 32-bit word."""
    return (word + 0.5) * (SCALE * (2.0 * RESET_BOUND)) - RESET_BOUND
