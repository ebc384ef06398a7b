#!/bin/sh
# Takes out of an installed environment what a running Kneewatch never opens, and compiles what it imports.
#
#   slim.sh PYTHON        the environment's Python; wants strip (binutils) on PATH
#
# Deleted are tests, sources in C and Cython, headers, static libraries, stubs for type checkers, and the parts of
# scipy that nothing here imports (tests/deploy/test_image.py). Symbols are taken from the compiled modules; not from the
# libraries in *.libs, whose layout strip would break. Byte code is written now, since a read-only root keeps none later.
set -eu
python=$1
site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
find "$site" -depth -type d \( -name tests -o -name __pycache__ \) -exec rm -rf {} +
find "$site" -type f \( -name '*.c' -o -name '*.cpp' -o -name '*.h' -o -name '*.hpp' -o -name '*.pxd' -o -name '*.pxi' \
    -o -name '*.pyx' -o -name '*.a' -o -name '*.pyi' \) -delete
find "$site" -type f -name '*.so*' -not -path '*.libs/*' -exec strip --strip-unneeded {} +
for part in scipy/cluster scipy/datasets scipy/differentiate scipy/fftpack scipy/integrate scipy/interpolate \
    scipy/io scipy/ndimage scipy/odr scipy/signal scipy/stats; do
    rm -rf "${site:?}/$part"
done
# Of what pygments can colour, hardly anything is ever shown.
"$python" -m compileall -q -x '/pygments/(lexers|styles)/' "$site"
