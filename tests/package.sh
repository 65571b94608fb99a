#!/bin/sh
# Install what dist/ holds, wheel and sdist, each into an empty environment outside the clone, and use it there.
set -eu
dist=$(cd "$(dirname "$0")/../dist" && pwd)
away=$(mktemp -d)
trap 'rm -rf "$away"' EXIT
cd "$away"
unset PYTHONPATH
for file in "$dist"/*.whl "$dist"/*.tar.gz; do
  rm -rf env runs clients.csv
  python3 -m venv env
  env/bin/python -m pip install --quiet --disable-pip-version-check "$file[sim,report]"
  env/bin/python -c 'import fedpace, os; assert os.getcwd() in fedpace.__file__; print(fedpace.__version__)'
  env/bin/fedpace example clients.csv
  env/bin/fedpace solve clients.csv -k 10 >/dev/null
  env/bin/fedpace run simulation-1 --schemes pace --seeds 1 --set stop.rounds=3 --out runs >/dev/null
  env/bin/fedpace report runs >/dev/null
  test -s runs/report.html
  echo "$(basename "$file"): installed, solved, trained, reported"
done
