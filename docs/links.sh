#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Checks that every relative link of a page leads to a file of the tree, and its #anchor to a heading of that page; and
# that every file in bench/results is linked from a page, because only runs that a page shows are stored there.
# usage: links.sh ROOT
set -eu
cd "$1"
found=$(mktemp)
trap 'rm -f "$found"' EXIT
pages=$(find README.md CONTRIBUTING.md CHANGELOG.md CODE_OF_CONDUCT.md SECURITY.md packaging docs examples test bench include -name '*.md' -type f | LC_ALL=C sort)

# Prints "PAGE TARGET" for each link outside code blocks; links to other sites are left out.
for page in $pages; do
  awk -v page="$page" '
    /^```/ { code = !code }
    code { next }
    {
      gsub(/`[^`]*`/, "")
      while (match($0, /\]\([^) ]*\)/)) {
        target = substr($0, RSTART + 2, RLENGTH - 3)
        $0 = substr($0, RSTART + RLENGTH)
        if (target !~ /^[a-z]+:/) print page, target
      }
    }' "$page"
done >"$found"

# Prints the anchors that GitHub gives the headings of a page.
anchors() {
  LC_ALL=C awk '
    /^```/ { code = !code }
    !code && /^#+ / {
      sub(/^#+ /, "")
      $0 = tolower($0)
      gsub(/[^a-z0-9 _-]/, "")
      gsub(/ /, "-")
      print
    }' "$1"
}

bad=0
while read -r page target; do
  file=${target%%#*}
  case $target in *'#'*) anchor=${target#*#} ;; *) anchor= ;; esac
  if [ -z "$file" ]; then path=$page; else path=$(dirname "$page")/$file; fi
  if [ ! -e "$path" ]; then
    echo "$page: $target does not exist" && bad=1
  elif [ -n "$anchor" ] && ! anchors "$path" | grep -qx -e "$anchor"; then
    echo "$page: $target: no such heading" && bad=1
  fi
done <"$found"
for result in bench/results/*; do
  [ "$result" != bench/results/README.md ] || continue
  grep -q "bench/results/$(basename "$result")\$" "$found" || { echo "no page links $result" && bad=1; }
done
echo "$(wc -l <"$found") links"
exit "$bad"
