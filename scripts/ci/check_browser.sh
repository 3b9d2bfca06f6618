#!/bin/sh
# check_browser.sh PYTHON
# Run the tests of the page in Chromium. Where there is none it is installed on CI, and elsewhere the tests say how.
cd "$(dirname "$0")/../.." || exit 1
. scripts/ci/environment.sh
make_browser || exit 1
exec "$1" -m pytest -q -n 2 --dist loadfile --durations=10 -m browser tests/page
