#!/bin/sh
# Remove files that Kneewatch does not need at run time from an installed environment, and compile the rest to byte code.
#
#   slim.sh PYTHON        the environment's Python; needs strip (binutils) on PATH
#
# Deletes tests, C and Cython sources, headers, static libraries and type stubs. Strips symbols from compiled modules, but
# not from the libraries in *.libs, whose layout strip would break. Writes byte code now, because a read-only root file
# system cannot store it later.
set -eu
python=$1
site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
find "$site" -depth -type d \( -name tests -o -name __pycache__ \) -exec rm -rf {} +
find "$site" -type f \( -name '*.c' -o -name '*.cpp' -o -name '*.h' -o -name '*.hpp' -o -name '*.pxd' -o -name '*.pxi' \
    -o -name '*.pyx' -o -name '*.a' -o -name '*.pyi' \) -delete
find "$site" -type f -name '*.so*' -not -path '*.libs/*' -exec strip --strip-unneeded {} +
# Skip the lexers and styles of pygments, which are hardly ever imported.
"$python" -m compileall -q -x '/pygments/(lexers|styles)/' "$site"
