#!/bin/bash
# Shows which versions of pins.txt are behind, and ends with 1 if some are. It asks pip's index, registries of
# images (with skopeo) and repositories, so a person runs it, and no test does.
set -euo pipefail
shopt -s extglob
cd "$(dirname "$0")"

# newest SUFFIX prints the newest of the versions on standard input that end with the suffix.
newest() { grep -E "^v?[0-9][0-9.]*$1\$" | sort -V | tail -n 1 || true; }

# available VARIANT VERSION WHERE prints the newest version of a pin, or nothing.
available() {
  local name=${2%%==*} index=()
  case $3 in
  pip*)
    [ "$3" = pip ] || name=${3#pip:}
    address=$(awk -v v="$1" '$1 == v && $2 == "TORCH_INDEX_URL" {print $3}' pins.txt)
    if [ "$name" = torch ] && [ -n "$address" ]; then index=(--index-url "$address"); fi
    pip index versions "${index[@]}" "${name%%[*}" 2>/dev/null | sed -n 's/^Available versions: \([^,]*\).*/\1/p'
    ;;
  image)
    skopeo list-tags "docker://${2%%:*}" | sed -n 's/^ *"\([^"]*\)",\{0,1\}$/\1/p' | newest "${2##*:*([0-9.])}"
    ;;
  git:*)
    git ls-remote --tags --refs "${3#git:}" | sed 's,.*refs/tags/,,' | newest ''
    ;;
  esac
}

code=0
row() { printf '%-5s %-28s %-22s %-22s %s\n' "$@"; }
row IMAGE WHAT HERE NEWEST ''
while read -r variant name version where; do
  case $variant in '#'* | '') continue ;; esac
  what=$name have=$version
  case $version in
  *==*) what=${version%%==*} have=${version##*==} ;;
  *:*) if [ "$where" = image ]; then what=${version%%:*} have=${version##*:}; fi ;;
  esac
  new=$(available "$variant" "$version" "$where" || true)
  says=
  if [ -z "$new" ]; then
    new='?' says='not known: look yourself'
  elif [ "$new" != "$have" ]; then
    says=behind code=1
  fi
  row "$variant" "$what" "${have:0:22}" "$new" "$says"
done <pins.txt
exit $code
