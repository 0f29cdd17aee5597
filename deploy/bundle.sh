#!/usr/bin/env bash
# Makes one relocatable archive for machines that have PyTorch and no package manager: programs of the cuda preset, every
# shared library they need but LibTorch's, CUDA's and the C library's, example jobs, the scripts for Slurm and storage
# grants, and the GPU checks.
#
#   deploy/bundle.sh [--out FILE]      default: build/atoll-<version>-linux-x86_64.tar.gz
#
# It is built and started without a GPU. Fails when the archive is larger than 60 MB.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
programs=(atoll atoll-coordinator atoll-worker atoll-router gpu_checks sample_bench serving_bench)
largest=60000000

say() { printf 'bundle: %s\n' "$*" >&2; }
die() { printf 'bundle: error: %s\n' "$*" >&2; exit 1; }
misuse() { printf 'bundle: error: %s\n' "$*" >&2; exit 2; }

version=$(sed -n 's/^project(atoll VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
name=atoll-$version-linux-x86_64
archive=build/$name.tar.gz
while [ $# -gt 0 ]; do
  case "$1" in
    --out) [ $# -ge 2 ] || misuse "--out: expected a file, found nothing"; archive=$2; shift 2 ;;
    -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' deploy/bundle.sh; exit 0 ;;
    *) misuse "unknown argument '$1'; expected --out FILE" ;;
  esac
done

deploy/setup.sh
prefix=$(deploy/setup.sh --prefix)
say "building (the first time takes minutes)"
cmake --preset cuda >/dev/null
cmake --build --preset cuda --target "${programs[@]}" -- -j"${ATOLL_JOBS:-$(nproc)}" >&2

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
home=$work/$name
mkdir -p "$home"/{bin,libexec,lib/ucx,lib/fallback,deploy,tests}

# A DT_RPATH, unlike a DT_RUNPATH, also holds for the libraries that the libraries need, and comes before LD_LIBRARY_PATH.
for program in "${programs[@]}"; do
  strip -o "$home/libexec/$program" "build/cuda/bin/$program"
  patchelf --force-rpath --set-rpath '$ORIGIN/../lib' "$home/libexec/$program"
done

# Lists the libraries that the loader finds for the programs and for UCX's modules, which it loads by name from a folder
# beside it.
ucx=$(dirname "$(/sbin/ldconfig -p | awk '$1 == "libuct.so.0" { print $NF; exit }')")/ucx
[ -d "$ucx" ] || die "expected UCX's modules in $ucx, found none"
copy() {  # LIBRARY NAME FOLDER
  strip --strip-unneeded -o "$home/lib/$3$2" "$1"
  local package
  package=$(dpkg -S "$(readlink -f "$1")" 2>/dev/null || dpkg -S "$(readlink -f "$1" | sed 's|^/usr||')" 2>/dev/null) || package=
  case $1 in "$prefix"/arrow/*) package="pyarrow (PyPI)" ;; *) package=${package%%:*} ;; esac
  printf '%s  lib/%s%s  %s\n' "$(sha256sum "$home/lib/$3$2" | cut -c1-64)" "$3" "$2" "${package:-unknown}" >>"$home/MANIFEST"
}
for program in "${programs[@]}"; do ldd "build/cuda/bin/$program"; done |
  awk '$2 == "=>" { print $1, $3 }' | sort -u >"$work/needed"
! grep ' not$' "$work/needed" >&2 || die "the loader does not find the libraries above"
while read -r library path; do
  case $library in
    ld-linux*|libc.so.*|libm.so.*|libdl.so.*|libpthread.so.*|librt.so.*|libutil.so.*|libresolv.so.*) continue ;;
    libstdc++.so.*|libgcc_s.so.*) copy "$path" "$library" fallback/; continue ;;  # used where the machine's own are older
  esac
  case $path in "$prefix"/torch/*|*/nvidia/*) continue ;; esac
  copy "$path" "$library" ""
done <"$work/needed"
# The modules' own needs (InfiniBand's libraries and drivers) belong to the machine.
for module in "$ucx"/lib*.so.0; do copy "$module" "$(basename "$module")" ucx/; done

ask() { "$prefix/bin/python" - "$1" <<'END'
import re, sys
path = __import__("importlib.util").util.find_spec("torch").submodule_search_locations[0]
text = open(f"{path}/version.py").read()
print(re.search(sys.argv[1], text, re.M).group(1))
END
}
torch=$(ask "__version__ = ['\"]([0-9]+\.[0-9]+)")
cuda=$(ask "^cuda\b.*= ['\"]([0-9]+)")
newest() {  # SYMBOL PREFIX, then conditions of find
  find "$home/libexec" "$home/lib" -type f "${@:2}" -exec objdump -T {} + 2>/dev/null |
    grep -o "$1_[0-9][0-9.]*" | sed 's/.*_//' | sort -Vu | tail -n 1
}
glibc=$(newest GLIBC -not -path '*/fallback/*')
glibcxx=$(newest GLIBCXX -not -path '*/fallback/*')
system=$(. /etc/os-release && echo "$PRETTY_NAME")
fill() {
  sed -e "s/@TORCH@/$torch/g" -e "s/@CUDA@/$cuda/g" -e "s/@GLIBC@/$glibc/g" -e "s/@GLIBCXX@/$glibcxx/g" \
    -e "s|@SYSTEM@|$system|g" "$1" >"$2"
}
fill deploy/bundle/atoll-env "$home/bin/atoll-env"
fill deploy/bundle/README.md "$home/README.md"
chmod +x "$home/bin/atoll-env"
for program in atoll atoll-coordinator atoll-worker atoll-router; do ln -s atoll-env "$home/bin/$program"; done
cp deploy/bundle/find_torch.py "$home/libexec/"
cp -r deploy/jobs deploy/slurm deploy/storage-grants "$home/deploy/"
mkdir "$home/tests/gpu"
cp tests/gpu/*.sh tests/gpu/*.py "$home/tests/gpu/"
cp CHANGELOG.md "$home/"
printf 'commit %s\n' "$(git rev-parse HEAD 2>/dev/null || echo unknown)" >>"$home/MANIFEST"

# No file in the bundle may refer to this machine's folders. (Messages of LibTorch's headers name their files.)
if grep -rlF -e "$root" "$home" >&2; then die "the files above name folders of this machine"; fi
if find "$home/libexec" "$home/lib" -type f -exec readelf -d {} + 2>/dev/null | grep -F -e "$prefix" >&2; then
  die "the run paths above name folders of this machine"
fi

mkdir -p "$(dirname "$archive")"
tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -cf - "$name" | gzip -9n >"$archive.part"
mv "$archive.part" "$archive"
size=$(stat -c %s "$archive")
say "$archive: $((size / 1000)) kB; needs glibc $glibc, PyTorch $torch for CUDA $cuda"
if [ "$size" -gt "$largest" ]; then
  (cd "$home/lib" && find . -type f -printf '%s %P\n' | sort -rn | head -n 6 | while read -r _ file; do
    printf 'bundle: %9d kB packed  %s\n' "$(($(gzip -9nc "$file" | wc -c) / 1000))" "$file" >&2; done)
  die "expected at most $largest bytes, found $size; the largest libraries are above"
fi
echo "$archive"
