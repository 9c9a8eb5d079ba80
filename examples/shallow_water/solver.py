"""Waves in a square tank of shallow water, whose rows of cells are divided among the ranks of a communicator.

The flow begins at rest, and no force here makes it turn.  So it stays without vorticity, and all forces are the slope
of one field, the head (Bernoulli's), with velocities u along columns and v across rows:

    dh/dt      = -d(h u)/dx - d(h v)/dy
    d(u, v)/dt = -slope(g h + (u² + v²) / 2 + pressure - viscosity div(u, v)) - drag (u, v)

Heights are in the middle of the cells; u and v are at their left and lower faces (Arakawa's C grid).  A time step is
forward for the heights, then backward for the velocities, which see the new heights.  What leaves a cell enters its
neighbour, so no water is lost.

The number of ranks does not change a bit: each number is computed by the same operations in the same order, whoever
owns its row.  Nothing is summed over ranks; `gather_rows` gives all ranks the rows of all, in the order of the tank.
"""

import numpy as np
from mpi4py import MPI

GRAVITY = 9.81  # m/s^2
DEPTH = 0.2  # m, at rest
SIDE = 4.0  # m, of the tank
DRAG = 0.01  # 1/s
VISCOSITY = 0.002  # m^2/s: waves of few cells die, before they become steeper than the grid can carry
COURANT = 0.5  # cells that a wave passes in a time step
HALO = 2  # rows of each neighbour that a time step looks at


class Tank:
    """The rows of a tank that this rank owns; all methods are collective.

    `water[row, field, column]` has HALO rows more at both ends, and a column more on both sides: walls, which never
    change, or copies of what a neighbour owns.  Rows come first, so that a halo is one piece of memory for MPI.
    """

    def __init__(self, comm: MPI.Intracomm, num_cells: int):
        if num_cells < HALO * comm.size:
            raise ValueError(f"a rank needs {HALO} rows, got {num_cells} rows on {comm.size} ranks; use fewer ranks")
        self.comm, self.num_cells, self.cell_m = comm, num_cells, SIDE / num_cells
        self.firsts = [num_cells * rank // comm.size for rank in range(comm.size + 1)]
        self.rows = slice(*self.firsts[comm.rank : comm.rank + 2])
        self.num_rows = self.rows.stop - self.rows.start
        self.water = np.empty((self.num_rows + 2 * HALO, 3, num_cells + 2))
        self.heights, self.u, self.v = self.water.transpose(1, 0, 2)
        self.own = np.s_[HALO:-HALO, 1:-1]
        self.num_substeps_per_s = (GRAVITY * DEPTH) ** 0.5 / (COURANT * self.cell_m)
        rows, columns = self.num_rows + 2, num_cells
        shapes = (rows, columns + 1), (rows + 1, columns), (rows, columns), (rows, columns)
        # Made once: memory that the system gives anew for each operation takes three times as long.
        self._work = tuple(np.empty(shape) for shape in shapes)
        self._requests = self._make_requests()

    def _make_requests(self) -> list[MPI.Prequest]:
        """Say once what travels in each time step: the outermost own rows, into the halos of the neighbours."""
        comm, water, requests = self.comm, self.water, []
        below, above = (rank if 0 <= rank < comm.size else MPI.PROC_NULL for rank in (comm.rank - 1, comm.rank + 1))
        for neighbour, own, halo, tags in (
            (below, water[HALO : 2 * HALO], water[:HALO], (0, 1)),
            (above, water[-2 * HALO : -HALO], water[-HALO:], (1, 0)),
        ):
            requests += [comm.Send_init(own, neighbour, tags[0]), comm.Recv_init(halo, neighbour, tags[1])]
        return requests

    def fill(self, heights: np.ndarray) -> None:
        """Begin at rest, with these heights of the whole tank."""
        self.water[:] = 0.0
        self.heights[:] = DEPTH
        self.heights[self.own] = heights[self.rows]

    def advance(self, duration_s: float, pressure: np.ndarray) -> None:
        """Let time pass under an air pressure over the whole tank, divided by the water's density (m²/s²)."""
        num_substeps = int(np.ceil(duration_s * self.num_substeps_per_s))
        # The head in the neighbours' nearest rows pushes the water at the own faces.  Beyond walls it has no effect.
        around = np.pad(pressure, ((HALO - 1, HALO - 1), (0, 0)), mode="edge")
        around = around[self.rows.start : self.rows.stop + 2 * (HALO - 1)]
        for _ in range(num_substeps):
            MPI.Prequest.Startall(self._requests)
            MPI.Prequest.Waitall(self._requests)
            self._substep(duration_s / num_substeps, around)

    def _substep(self, step_s: float, pressure: np.ndarray) -> None:
        """Compute a time step: new heights of all rows but the outermost, then new velocities of the own rows."""
        heights, u, v, per_m = self.heights, self.u, self.v, step_s / self.cell_m
        flow_x, flow_y, head, work = self._work
        np.add(heights[1:-1, :-1], heights[1:-1, 1:], out=flow_x)
        np.add(heights[:-1, 1:-1], heights[1:, 1:-1], out=flow_y)
        flow_x *= u[1:-1, 1:]
        flow_y *= v[1:, 1:-1]
        np.subtract(flow_x[:, 1:], flow_x[:, :-1], out=work)
        work += flow_y[1:]
        work -= flow_y[:-1]
        work *= per_m / 2  # The height at a face is the mean of two.
        heights[1:-1, 1:-1] -= work

        np.multiply(heights[1:-1, 1:-1], GRAVITY, out=head)
        head += pressure
        left, right, lower, upper = u[1:-1, 1:-1], u[1:-1, 2:], v[1:-1, 1:-1], v[2:, 1:-1]
        for faces, inwards in ((left, 1), (right, -1), (lower, 1), (upper, -1)):
            np.multiply(faces, 0.25, out=work)
            work += inwards * VISCOSITY / self.cell_m
            work *= faces
            head += work
        head *= per_m
        lowest = int(self.rows.start == 0)  # The lowest faces of all are a wall.
        own_u, own_v = u[HALO:-HALO, 2:-1], v[HALO + lowest : -HALO, 1:-1]
        for velocity, before, behind in (
            (own_u, head[1:-1, :-1], head[1:-1, 1:]),
            (own_v, head[lowest:-2], head[lowest + 1 : -1]),
        ):
            velocity *= 1 - DRAG * step_s
            velocity += before
            velocity -= behind

    def energies(self) -> np.ndarray:
        """Return the energy of the waves in each own cell, in J/m² over the water's density."""
        u, v = self.u[self.own], self.v[self.own]
        return 0.5 * (GRAVITY * (self.heights[self.own] - DEPTH) ** 2 + DEPTH * (u**2 + v**2))

    def gather_rows(self, own: np.ndarray) -> np.ndarray:
        """Give all ranks the rows of all."""
        rows = np.empty((self.num_cells, *own.shape[1:]))
        counts = np.diff(self.firsts) * own[0].size
        self.comm.Allgatherv(np.ascontiguousarray(own), [rows, counts])
        return rows

    def free(self) -> None:
        """Free the requests; the communicator belongs to whoever made it."""
        while self._requests:
            self._requests.pop().Free()
