#!/usr/bin/env bash
# Build an sdist, a wheel from it, and try the wheel as who installs it gets it: by the commands of deploy/own-mpi.def,
# in a folder outside of the clone, on two ranks of the MPICH from PyPI.
#
#     make try-install
#
# The first argument is a Python with setuptools, which builds without a network.
set -euo pipefail
builder=$(realpath --no-symlinks "$(command -v "$1")")
clone=$(cd "$(dirname "$0")/.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
pip=("$builder" -m pip --disable-pip-version-check --quiet)

# The text of a section of the recipe, in whose folders $folder comes first.
section() { sed -n "/^%$1\$/,/^%/{/^%/d;s,/opt,$folder/opt,g;p}" "$clone/deploy/own-mpi.def"; }

cd "$clone"
"$builder" -c 'import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])' "$folder" > "$folder/log" 2>&1 \
    || { cat "$folder/log" >&2; exit 1; }
"${pip[@]}" install --no-deps --no-build-isolation --target "$folder/git" "mpi_rollout @ git+file://localhost$clone"
cd "$folder"
mkdir opt home sources
tar xzf mpi_rollout-*.tar.gz --strip-components=1 --directory sources
for file in Makefile slurm/collect.sbatch deploy/own-mpi.def examples/train_ppo.py docs/tutorial.md tests/conftest.py; do
    [ -f "sources/$file" ] || { echo "$0: the sdist has no $file" >&2; exit 1; }
done
"${pip[@]}" wheel --no-deps --no-build-isolation --wheel-dir opt mpi_rollout-*.tar.gz

unset PYTHONPATH
export PIP_QUIET=1 PIP_DISABLE_PIP_VERSION_CHECK=1
export HOME=$folder/home PATH=${builder%/*}:/usr/local/bin:/usr/bin:/bin
bash -euo pipefail -c "$(section post)"
# Without the packages of the builder, and with the environment that a container has.
bash -euo pipefail -c "$(section environment); PATH=$folder/opt/rollout/bin:/usr/bin:/bin; $(section test)
test -f \"\$(python -c 'import mpi_rollout; print(mpi_rollout.__path__[0])')/py.typed\"
! mpi-rollout inspect run.h5 --plot 2> message  # A message that names the package, not the sources.
grep -F \"pip install 'mpi_rollout[plots]'\" message"
echo "the wheel and the sdist work"
